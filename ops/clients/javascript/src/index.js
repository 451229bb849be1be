/**
 * A client of the CoGR query expander and of the OpenSearch index behind it, without dependencies.
 * @module
 */

import {
  fallbackExpansion,
  readExpansion,
  readFound,
  RefusedError,
  SearchError,
} from "./answers.js";

export { RefusedError, SearchError };

/** @typedef {import("./answers.js").Expansion} Expansion */
/** @typedef {import("./answers.js").Found} Found */
/** @typedef {import("./answers.js").Hit} Hit */

/**
 * @typedef {object} Addresses
 * @property {string} expander address of the expander
 * @property {string} [opensearch] address of OpenSearch; without it the client only expands
 * @property {string} [prefix] `opensearch.prefix` of the configuration that publishes ("cogr")
 * @property {string} [token] bearer token of the expander
 * @property {{username: string, password: string}} [auth] of OpenSearch
 * @property {number} [patience] milliseconds to wait for the expander; beyond it the query alone
 *   is used (500)
 * @property {number} [timeout] milliseconds to wait for OpenSearch (10,000)
 */

/**
 * How to search; parameters of the stored search template.
 *
 * @typedef {object} SearchOptions
 * @property {object} [text_query] your own text search for the query, in place of the one in titles
 * @property {boolean} [set_only] leave out what only the text finds
 * @property {number} [size] results in a page (10)
 * @property {object[]} [filters] query clauses that results must meet; they don't score
 * @property {object} [post_filter] a query clause for the hits but not for the aggregations
 * @property {object[]} [sort] what comes before the score in the order, such as
 *   `[{ price: "asc" }]`
 * @property {any[]} [search_after] the `sort` of the last hit of the page before
 * @property {Record<string, object>} [aggs] aggregations, for facets of the set
 * @property {string[]} [fields] more fields of the document to give back than `item_id` and `text`
 */

const OPTIONS = [
  "text_query",
  "set_only",
  "size",
  "filters",
  "post_filter",
  "sort",
  "search_after",
  "aggs",
  "fields",
];

/** Expands and searches. One serves a whole program. */
export class Client {
  #to;

  /** @param {Addresses} addresses */
  constructor(addresses) {
    this.#to = { prefix: "cogr", patience: 500, timeout: 10_000, ...addresses };
  }

  /**
   * Keywords of a query; the query alone when the expander is away.
   *
   * @param {string} query
   * @returns {Promise<Expansion>}
   * @throws {RefusedError}
   */
  async expand(query) {
    return readExpansion(await this.#ask({ query })) ?? fallbackExpansion(query);
  }

  /**
   * Expand and search.
   *
   * @param {string} query
   * @param {SearchOptions} [options]
   * @returns {Promise<Found>}
   * @throws {RefusedError | SearchError | TypeError} a TypeError for an option that there is not
   */
  async search(query, options = {}) {
    // The search template would pass over what it does not know: a filter that filters nothing.
    const odd = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (odd !== undefined)
      throw new TypeError(`search has no option "${odd}"; it takes ${OPTIONS.join(", ")}`);
    const { opensearch } = this.#to;
    if (opensearch === undefined)
      throw new SearchError("this client has no address of OpenSearch; give one to search");
    const expansion = await this.expand(query);
    const answer = await this.#search(opensearch, query, expansion, options);
    if (answer.status !== 200)
      throw new SearchError(
        `OpenSearch refuses with status ${answer.status}: ${answer.text.slice(0, 500)}`,
      );
    return readFound(json(answer.text), expansion);
  }

  /**
   * @param {string} opensearch its address
   * @param {string} query
   * @param {Expansion} expansion
   * @param {SearchOptions} options
   */
  async #search(opensearch, query, expansion, options) {
    const { prefix, auth, timeout } = this.#to;
    const index = expansion.index ?? `${prefix}-items`;
    const path = `${index}/_msearch/template?search_type=dfs_query_then_fetch`;
    const given = { explain: true, text: query.slice(0, 512), ...parameters(expansion, options) };
    // Hits and counts at the same time: together they take longer.
    const searches = [{ ...given, hits_only: true }, { ...given, set_only: true, size: 0 }];
    const lines = searches.flatMap((params) => [{}, { id: `${prefix}-search`, params }]);
    return post(opensearch, path, lines, timeout, auth && basic(auth)).catch((error) => {
      throw new SearchError(`OpenSearch can't be reached: ${error.message}`, { cause: error });
    });
  }

  /**
   * The expander's words; null when it is away, ill or busy.
   *
   * @param {object} body
   * @returns {Promise<any>}
   */
  async #ask(body) {
    const { expander, token, patience } = this.#to;
    const answer = await post(expander, "expand", body, patience, token && `Bearer ${token}`).catch(
      () => null,
    );
    if (answer === null || answer.status === 429) return null;
    if (answer.status >= 400 && answer.status < 500) {
      throw new RefusedError(
        `The expander refuses with status ${answer.status}: ${answer.text.slice(0, 500)}`,
      );
    }
    return answer.status === 200 ? json(answer.text) : null;
  }
}

/**
 * Of the search template.
 *
 * @param {Expansion} expansion
 * @param {SearchOptions} options
 * @returns {object}
 */
function parameters({ keywords, weights, text_boost }, { text_query, ...given }) {
  const pairs = keywords.map((keyword, at) => ({ keyword, weight: weights[at] ?? 1 }));
  const weighted = {
    weighted: pairs.filter(({ weight }) => weight > 0),
    without: pairs.filter(({ weight }) => weight === 0).map(({ keyword }) => keyword),
  };
  return { ...weighted, text_boost, ...(text_query && { text_query: [text_query] }), ...given };
}

/**
 * @param {string} address
 * @param {string} path
 * @param {object} body one JSON object, or an array of those that are lines
 * @param {number} patience milliseconds, for the whole answer
 * @param {string} [authorization]
 * @returns {Promise<{status: number, text: string}>}
 */
async function post(address, path, body, patience, authorization) {
  const lines = Array.isArray(body) && body.map((line) => `${JSON.stringify(line)}\n`).join("");
  const answer = await fetch(`${address.replace(/\/+$/, "")}/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...(authorization && { authorization }) },
    body: lines || JSON.stringify(body),
    signal: AbortSignal.timeout(patience),
  });
  return { status: answer.status, text: await answer.text() };
}

/** @param {{username: string, password: string}} auth */
function basic({ username, password }) {
  return `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}`;
}

/**
 * @param {string} text
 * @returns {any} null when it is no JSON
 */
function json(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
