/**
 * The client does what ../conformance.json says. COGR_CLIENT_WORLD holds addresses of a live world
 * as JSON; tests/ops/clients/test_clients.py makes one and runs this.
 */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { Client, RefusedError, SearchError } from "cogr-client";

const { cases } = JSON.parse(
  await readFile(new URL("../../conformance.json", import.meta.url), "utf-8"),
);
const world = JSON.parse(process.env.COGR_CLIENT_WORLD ?? "null");
const errors = { refused: RefusedError, search: SearchError, option: TypeError };

/** The client of a case. */
function client({ expander = "up", opensearch = "up", token = world.token }) {
  const patience = expander === "up" ? 30_000 : 300;
  const to = { expander: world.expander[expander], opensearch: world.opensearch[opensearch] };
  return new Client({ ...to, prefix: world.prefix, token, patience, timeout: 30_000 });
}

async function searched(given) {
  const asking = client(given);
  let found = await asking.search(given.query, given.options);
  for (let page = 1; page < (given.page ?? 1); page++) {
    found = await asking.search(given.query, {
      ...given.options,
      search_after: found.hits.at(-1).sort,
    });
  }
  return found;
}

/**
 * What a search found, in the words of the conformance file, as far as a case expects something.
 */
function seen({ total, more, hits, aggregations, expansion }, expected) {
  const first = hits[0] ?? { matched: [], source: {} };
  const buckets = aggregations.facet?.buckets ?? [];
  const whole = {
    ...expansion,
    total,
    more,
    tiers: hits.map((hit) => hit.tier),
    ids: hits.map((hit) => hit.id),
    best: hits.toSorted((one, other) => other.score - one.score)[0]?.id,
    matched: first.matched.toSorted(),
    text: first.source.text,
    field: Object.fromEntries(
      Object.keys(expected.field ?? {}).map((name) => [name, first.source[name]]),
    ),
    facet: Object.fromEntries(buckets.map((bucket) => [bucket.key, bucket.doc_count])),
  };
  return Object.fromEntries(Object.keys(expected).map((name) => [name, whole[name]]));
}

for (const given of cases) {
  test(given.name, { skip: world === null && "no COGR_CLIENT_WORLD" }, async () => {
    const { error, ...expected } = given.expect;
    if (error) await assert.rejects(searched(given), errors[error]);
    else assert.deepEqual(seen(await searched(given), expected), expected);
  });
}

test(
  "a client without OpenSearch only expands",
  { skip: world === null && "no COGR_CLIENT_WORLD" },
  async () => {
    const expanding = new Client({ expander: world.expander.absent });
    assert.equal((await expanding.expand("a")).reason, "no expander");
    await assert.rejects(expanding.search("a"), SearchError);
  },
);
