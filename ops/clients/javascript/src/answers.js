/**
 * What the expander and OpenSearch answer, as values. Nothing here sends anything.
 * @module
 */

/**
 * The expander refuses the request: a wrong token, too long a query. The caller has to correct it.
 */
export class RefusedError extends Error {
  name = "RefusedError";
}

/** OpenSearch can't be reached, refuses, or gives only a part of an answer. */
export class SearchError extends Error {
  name = "SearchError";
}

/**
 * A query's keywords.
 *
 * @typedef {object} Expansion
 * @property {string[]} keywords the normalised query first, then its keywords
 * @property {"cache" | "index" | "model" | "none"} source where they come from; with none the
 *   query is its own only keyword
 * @property {string} reason why there are none; "no expander" when the expander did not answer
 * @property {object} clause the OpenSearch query, for a body of your own: first the set, then
 *   what more the text finds. The fallback's has the query alone
 * @property {object} set the query of the set alone, as a filter for counts and facets
 * @property {string | null} index the index to search, so that keywords and items are of one
 *   round; null to use the alias
 * @property {{item: string | null, query: string | null}} snapshots ids of the pair of snapshots
 * @property {number[]} weights how much each keyword counts in the order of what is found; none
 *   where all are 1
 * @property {number | null} confidence the expected F1 of what the keywords find, 0 to 1; null
 *   where it is unknown
 * @property {number} text_boost how much the text's score counts beside the keywords'
 */

/**
 * One item.
 *
 * @typedef {object} Hit
 * @property {string} id
 * @property {"set" | "more"} tier whether it belongs to the set, or is one more by its text
 * @property {number} score
 * @property {Record<string, any>} source the document's `item_id`, `text` and the fields that
 *   were asked for
 * @property {string[]} matched the keywords that it was found by
 * @property {any[]} sort continues a search (`search_after`)
 */

/**
 * The answer to a search.
 *
 * @typedef {object} Found
 * @property {number} total the size of the set: what the keywords find, and items that have every
 *   word of the query in one field
 * @property {number} more how many more the text finds
 * @property {Hit[]} hits the best of the set, then of the rest
 * @property {Record<string, any>} aggregations facets of the set
 * @property {Expansion} expansion what it was made with
 */

/**
 * From the expander's words.
 *
 * @param {any} answer
 * @returns {Expansion | null} null when it can't be read
 */
export function readExpansion(answer) {
  return Array.isArray(answer?.keywords) ? answer : null;
}

/**
 * Without an expander: near enough to its normalisation for plain words.
 *
 * @param {string} query
 * @returns {Expansion}
 */
export function fallbackExpansion(query) {
  const text = query
    .normalize("NFKC")
    .toLowerCase()
    .replace(/[\s,;、،؛]+/g, " ")
    .trim();
  const keywords = text ? [text] : [];
  const clause = text ? { match: { keywords: { query: text } } } : { match_none: {} };
  return {
    keywords,
    source: "none",
    reason: "no expander",
    clause,
    set: clause,
    index: null,
    snapshots: { item: null, query: null },
    weights: [],
    confidence: null,
    text_boost: 1,
  };
}

/**
 * From OpenSearch's words, for hits and for counts.
 *
 * @param {any} answers
 * @param {Expansion} expansion
 * @returns {Found}
 * @throws {SearchError} they are not a whole answer
 */
export function readFound(answers, expansion) {
  const [answer, counts] = Array.isArray(answers?.responses) ? answers.responses : [];
  for (const one of [answer, counts]) {
    if (one?.error)
      throw new SearchError(`OpenSearch refuses: ${JSON.stringify(one.error).slice(0, 500)}`);
    if (!Array.isArray(one?.hits?.hits))
      throw new SearchError("OpenSearch's answer can't be read; check its address");
    if (one.timed_out || one._shards?.failed)
      throw new SearchError("OpenSearch gave only a part of the answer; search again");
  }
  const { doc_count: _, ...aggregations } = counts.aggregations.set;
  const total = counts.aggregations.total.doc_count;
  const more = answer.hits.total.value - total;
  return { total, more, hits: answer.hits.hits.map(readHit), aggregations, expansion };
}

/**
 * @param {any} hit
 * @returns {Hit}
 */
function readHit({ _source: source, sort, matched_queries: matched = [] }) {
  // Every order ends with score and id, whatever comes before.
  const score = sort.at(-2);
  const above = score >= TIER;
  const tier = above ? "set" : "more";
  return { id: source.item_id, tier, score: above ? score - TIER : score, source, matched, sort };
}

/** The score that the template adds to every item of the set. */
const TIER = 1024;
