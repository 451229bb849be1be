#!/bin/sh
# Expand a query and search with its keywords: cogr-search.sh QUERY [PARAMETERS]
#
# PARAMETERS is a JSON object with parameters of the search template: '{"size": 20}'. Its
# "text_query" is one query clause, your own text search in place of the one in titles.
# Environment: COGR_EXPANDER and COGR_OPENSEARCH, the addresses; COGR_PREFIX (cogr), COGR_TOKEN,
# COGR_PATIENCE (0.5, in seconds), COGR_OPENSEARCH_AUTH (user:password). Needs curl and jq.
# The answer is one JSON object on standard output. Status 2: a parameter that there is not, or the
# expander refuses; 3: OpenSearch is away or refuses.
set -eu
query=$1
parameters=${2:-'{}'}
prefix=${COGR_PREFIX:-cogr}
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT

fail() {
  echo "$2" >&2
  head -c 500 "$scratch" >&2
  exit "$1"
}

# The search template ignores what it does not know: a filter that filters nothing.
odd=$(printf '%s' "$parameters" | jq -r 'keys - ["text_query", "set_only", "size", "filters",
  "post_filter", "sort", "search_after", "aggs", "fields"] | join(", ")') ||
  fail 2 "The parameters are no JSON object."
[ -z "$odd" ] || fail 2 "The search template has no parameter $odd; it takes text_query, \
set_only, size, filters, post_filter, sort, search_after, aggs and fields."

# A POST of standard input; prints the status (000: nobody there), keeps the answer in $scratch.
# Secrets come by the configuration on descriptor 3: a command line can be seen by everybody on the
# machine.
post() {
  : >"$scratch"
  curl --silent --config /dev/fd/3 --output "$scratch" --write-out '%{http_code}' --max-time "$1" \
    --header 'content-type: application/json' --data-binary @- "$2" || :
}

quoted() {
  printf '%s' "$1" | jq -Rs .
}

expanded() {
  jq -n --arg query "$query" '{query: $query}' |
    post "${COGR_PATIENCE:-0.5}" "$COGR_EXPANDER/expand" 3<<END
${COGR_TOKEN:+header = $(quoted "authorization: Bearer ${COGR_TOKEN:-}")}
END
}

# Without an expander: the query alone.
fallback() {
  echo "No expander: searching with the query alone." >&2
  jq -n --arg query "$query" '
    ($query | ascii_downcase | [splits("[\\s,;、،؛]+") | select(. != "")] | join(" ")) as $text |
    {keywords: [$text | select(. != "")], source: "none", reason: "no expander", index: null,
     weights: [], confidence: null, text_boost: 1}'
}

case $(expanded) in
  429) expansion=$(fallback) ;;
  4*) fail 2 "The expander refuses." ;;
  200) expansion=$(jq -ce 'select(.keywords | type == "array")' "$scratch" 2>/dev/null) ||
    expansion=$(fallback) ;;
  *) expansion=$(fallback) ;;
esac

index=$(printf '%s' "$expansion" | jq -r --arg alias "$prefix-items" '.index // $alias')
status=$(
  printf '%s' "$expansion" |
    jq --arg id "$prefix-search" --arg text "$query" --argjson given "$parameters" '
      (([[.keywords, .weights] | transpose[] | {keyword: .[0], weight: (.[1] // 1)}] |
          {weighted: map(select(.weight > 0)), without: map(select(.weight == 0).keyword)}) +
        {explain: true, text: $text[:512], text_boost} + $given +
        ($given | if .text_query then {text_query: [.text_query]} else {} end)) |
      {}, {$id, params: (. + {hits_only: true})},
      {}, {$id, params: (. + {set_only: true, size: 0})}' --compact-output |
    post 10 "$COGR_OPENSEARCH/$index/_msearch/template?search_type=dfs_query_then_fetch" 3<<END
${COGR_OPENSEARCH_AUTH:+user = $(quoted "${COGR_OPENSEARCH_AUTH:-}")}
END
)
[ "$status" = 200 ] || fail 3 "OpenSearch can't be reached or refuses (status $status)."
whole='all(.responses[]; .status == 200 and (.timed_out | not) and ._shards.failed == 0)'
jq -e "$whole" "$scratch" >/dev/null 2>&1 ||
  fail 3 "OpenSearch gave no whole answer."
# The template adds 1024 to the score of every item of the set.
jq --argjson expansion "$expansion" '.responses as [$found, $counts] | {
  total: $counts.aggregations.total.doc_count,
  more: ($found.hits.total.value - $counts.aggregations.total.doc_count),
  hits: [$found.hits.hits[] | (.sort[-2] >= 1024) as $above | {id: ._source.item_id,
    tier: (if $above then "set" else "more" end),
    score: (.sort[-2] - (if $above then 1024 else 0 end)), source: ._source,
    matched: (.matched_queries // []), sort}],
  aggregations: ($counts.aggregations.set | del(.doc_count)),
  $expansion}' "$scratch"
