// The query's keywords as switches with weights: off takes one out of the search, on brings it
// back; more can be added.

import { button, decimals, fill, find, foreign, frequency, make, many, show } from "./dom.js";

const SOURCES = {
  cache: "from the cache",
  index: "precomputed, from the query snapshot",
  model: "written by the model just now",
  given: "typed by you",
  none: "no keywords: the query alone",
};
const REASONS = {
  unknown:
    "This pair's query snapshot does not hold the query, and no model answers for it now. " +
    "Add keywords to try what they would find.",
  loading: "The pair, or the model that writes keywords for new queries, is still being loaded.",
  deadline: "The keywords were not there within the deadline; by now they may be.",
  overloaded: "Too much is going on; the expander answered with the query alone.",
  away: "Something behind the expander is away; it answered with the query alone.",
  empty: "Nothing is left of this query when it is normalised.",
};
const HEAVIEST = 1000;

/** Reasons that may be gone the next time. */
const PASSING = new Set(["loading", "deadline", "overloaded", "away"]);

/** The words of one search: what an answer says, and what was changed by hand. */
export class Words {
  constructor() {
    this.list = [];
    this.changed = false;
  }

  /** What to ask for: nothing unless something was changed. */
  get asked() {
    return this.changed
      ? this.list.filter((word) => word.on).map(({ text, weight }) => ({ text, weight }))
      : null;
  }

  /** Take an answer in: new words at the end, those that are off stay where they are. */
  read(answer) {
    const known = new Map(this.list.map((word) => [word.text, word]));
    if (!this.changed) this.list = [];
    for (const { text, df, weight } of answer.keywords) {
      const word = known.get(text) ?? { text, added: this.changed };
      Object.assign(word, { df, weight, on: true });
      if (!this.list.includes(word)) this.list.push(word);
    }
    this.list = this.list.filter(
      (word) => !word.on || answer.keywords.some(({ text }) => text === word.text),
    );
    this.list.forEach((word, at) => {
      word.tone = at % 8;
    });
  }

  toggle(word) {
    word.on = !word.on;
    if (!word.on && word.added) this.list = this.list.filter((one) => one !== word);
    this.changed = true;
  }

  /** Words as somebody writes them; the answer says how they are normalised. */
  add(texts) {
    this.list.push(...texts.map((text) => ({ text, added: true, on: true, df: null, weight: 1 })));
    this.changed = true;
  }

  weigh(word, weight) {
    word.weight = weight;
    this.changed = true;
  }

  tone(text) {
    return this.list.find((word) => word.text === text)?.tone ?? 0;
  }
}

/**
 * Show the words of an answer. `again` is called after a change, with what finds the same place in
 * the list drawn anew.
 */
export function showKeywords(words, answer, again) {
  const { changed } = words;
  find("source").textContent = changed ? "changed by you" : SOURCES[answer.source];
  find("source").className = `badge ${answer.source === "none" && !changed ? "warn" : ""}`;
  const sure =
    answer.confidence === null
      ? "confidence unknown"
      : `confidence ${decimals(answer.confidence, 2)}`;
  find("sure").textContent = sure;
  show(find("sure"), !changed);
  const repeat = button({ className: "link", onclick: () => again() }, "Search again");
  const rules = answer.rules.length ? ["Rules: ", foreign(answer.rules.join("; "))] : null;
  const reason = REASONS[answer.reason];
  fill(find("why"), reason, PASSING.has(answer.reason) ? [" ", repeat, " "] : null, rules);
  show(find("why"), Boolean(reason || rules));
  show(find("reset"), changed);
  fill(
    find("keywords"),
    words.list.map((word, at) =>
      make("li", {}, chip(word, at, words, again), weight(word, at, words, again)),
    ),
  );
}

function chip(word, at, words, again) {
  const marks = `${word.added ? "added" : ""} ${word.df === 0 ? "nothing" : ""}`;
  const place = () => {
    const buttons = find("keywords").querySelectorAll("button");
    return buttons[Math.min(at, buttons.length - 1)] ?? find("more");
  };
  const given = {
    className: `chip tone${word.tone} ${marks}`,
    "aria-pressed": String(word.on),
    title: word.on
      ? `${many(word.df, "item has", "items have")} it. Click to search without it.`
      : "Left out. Click to search with it again.",
    onclick: () => {
      words.toggle(word);
      again(place);
    },
  };
  const dot = make("span", { className: "dot", "aria-hidden": "true" });
  return button(given, dot, foreign(word.text), frequency(word.df));
}

/** How much a keyword counts in the order of what is found. */
function weight(word, at, words, again) {
  const box = make("input", {
    type: "number",
    className: "weight",
    min: 0,
    max: HEAVIEST,
    step: "any",
    value: String(word.weight),
    disabled: !word.on,
    "aria-label": `Weight of ${word.text}`,
    title: "How much it counts in the order of the items",
    onchange: () => {
      const given = Number(box.value);
      if (!(given > 0 && given <= HEAVIEST)) {
        box.value = String(word.weight);
        return;
      }
      words.weigh(word, given);
      again(() => find("keywords").querySelectorAll(".weight")[at] ?? find("more"));
    },
  });
  // As wide as its number, beside what the browser has in such a box to step it.
  box.style.width = `calc(${String(word.weight).length}ch + 2.6rem)`;
  return box;
}
