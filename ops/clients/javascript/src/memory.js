/**
 * Expansions that were asked for lately, so that a shop's frequent queries are searched without
 * asking the expander each time.
 * @module
 */

/** @typedef {import("./answers.js").Expansion} Expansion */

/** Queries that are remembered; beyond them the oldest is forgotten. */
const SIZE = 1000;

/**
 * Expansions by query, for some time; all of one pair of snapshots. Only what has keywords is kept:
 * the query alone may have keywords by the next time. A Map does: it keeps the order of insertion,
 * which is that of age.
 */
export class Memory {
  /**
   * As JSON: whoever gets a clause may change it.
   *
   * @type {Map<string, {text: string, until: number}>}
   */
  #known = new Map();
  #pair = "";
  #lifetime;

  /** @param {number} lifetime milliseconds */
  constructor(lifetime) {
    this.#lifetime = lifetime;
  }

  /**
   * @param {string} query
   * @returns {Expansion | null}
   */
  get(query) {
    const known = this.#known.get(query);
    return known && performance.now() < known.until ? JSON.parse(known.text) : null;
  }

  /**
   * Remember an answer of the expander. One of another pair says that something was published: all
   * else is forgotten.
   *
   * @param {string} query
   * @param {Expansion} expansion
   */
  put(query, expansion) {
    const pair = JSON.stringify(expansion.snapshots);
    if (pair !== this.#pair) this.forget();
    this.#pair = pair;
    if (expansion.source === "none" || this.#lifetime <= 0) return;
    this.#known.delete(query);
    this.#known.set(query, {
      text: JSON.stringify(expansion),
      until: performance.now() + this.#lifetime,
    });
    if (this.#known.size > SIZE)
      this.#known.delete(/** @type {string} */ (this.#known.keys().next().value));
  }

  /** Forget all. */
  forget() {
    this.#known.clear();
  }
}
