// The playground: what is searched for, with which snapshots, and what happens when that changes.

import { ask, Refused } from "./asking.js";
import { button, fill, find, foreign, keepFocus, make, many, show } from "./dom.js";
import { showItem } from "./item.js";
import { openQueries, openRules } from "./queries.js";
import { showKeywords, Words } from "./keywords.js";
import { showBaseline, showHits, showNoBaseline, showPairs } from "./results.js";

const PAGE = 20;
/** Hits of the baseline that are shown also where keywords find fewer. */
const LEAST = 10;
const SEPARATORS = /[,;，、；،\n]/;
const state = {
  query: "",
  pairs: [],
  words: [],
  shown: 0,
  before: [],
  size: PAGE,
};
let page = null;
let answers = null;
let under = new AbortController();
let working = 0;

const asked = (at) => ({
  item: state.pairs[at].item,
  query: state.pairs[at].query,
  keywords: state.words[at].asked,
});

/**
 * Something that takes a while: shows that it does, and says what went wrong, with a way to try
 * again.
 */
async function during(work, again) {
  working += 1;
  show(find("working"), true);
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
    return true;
  } catch (error) {
    if (error.name === "AbortError") return false;
    if (!(error instanceof Refused)) throw error;
    complain(error.message, again);
    return false;
  } finally {
    working -= 1;
    show(find("working"), working > 0);
    document.body.setAttribute("aria-busy", String(working > 0));
  }
}

const LOADING =
  "The model that writes keywords for new queries is being loaded; the first answer waits for it.";
const waitedFor = (seconds) => `This answer waited ${seconds} s for its model to be loaded.`;

const notice = (sentence, ...more) =>
  make("div", { className: "notice" }, make("p", {}, foreign(sentence)), ...more);

function complain(sentence, again) {
  const onclick = () => {
    fill(find("notices"));
    again();
  };
  fill(find("notices"), notice(sentence, button({ onclick }, "Try again")));
}

/**
 * Search what the state says, with both pairs; then the baseline, which may take longer.
 * `place` finds what the focus goes to where drawing takes away what has it.
 */
async function search(place = () => find("results")) {
  under.abort();
  under = new AbortController();
  const { signal } = under;
  find("results").classList.add("stale");
  return during(
    async () => {
      const pairs = state.pairs.map((_, at) => asked(at));
      const found = await ask("search", { query: state.query, pairs, size: state.size }, signal);
      answers = found.pairs;
      answers.forEach((answer, at) => {
        state.words[at].read(answer);
        if (!state.words[at].changed) state.before[at] = answer;
      });
      fill(find("notices"), found.waited ? notice(waitedFor(found.waited)) : null);
      keepFocus(draw, place);
      say();
      await compareText(signal);
    },
    () => search(place),
  );
}

async function compareText(signal) {
  try {
    if (!find("baseline").children.length) showNoBaseline("Reading the items' texts …");
    const cut = answers[state.shown].total;
    const size = Math.max(LEAST, Math.min(cut, state.size));
    showBaseline(await ask("baseline", { query: state.query, cut, size }, signal), events);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    showNoBaseline(error.message);
  }
}

function draw() {
  const answer = answers[state.shown];
  const words = state.words[state.shown];
  show(find("welcome"), false);
  show(find("results"), true);
  find("results").classList.remove("stale");
  showPairs(state, page.pairs, answers, events);
  showKeywords(words, answer, search);
  showHits(state, answer, words, events);
}

function say() {
  const { total, more, figures } = answers[state.shown];
  const f1 = figures ? `, F1 ${figures.f1.toFixed(2)}` : "";
  find("said").textContent = `${many(total, "item")} found${f1}; ${more} more by text.`;
}

/** A query as it was typed; the address remembers it. */
function begin(query, remember = true) {
  if (!query.trim() || !state.pairs.length) return;
  Object.assign(state, { query, size: PAGE, words: state.pairs.map(() => new Words()) });
  find("query").value = query;
  document.title = `${query} – CoGR playground`;
  if (remember) history.pushState(null, "", `?q=${encodeURIComponent(query)}`);
  search();
}

const events = {
  async switchTo(at) {
    state.shown = at;
    draw();
    say();
    find(`shown-${at}`).focus();
    await during(() => compareText(under.signal), search);
  },
  async choose(at, choice) {
    state.pairs[at] = choice;
    state.words[at] = new Words();
    await search(() => find("pairs").querySelectorAll("select")[at]);
  },
  open(id) {
    const pair = { item: state.pairs[state.shown].item, query: state.pairs[state.shown].query };
    const open = () =>
      during(async () => {
        showItem(await ask("item", { id, pair }), state.words[state.shown], events);
      }, open);
    return open();
  },
  add(...texts) {
    state.words[state.shown].add(texts);
    return search();
  },
  search: (query) => begin(query),
};

function listen() {
  find("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    begin(find("query").value);
    if (document.activeElement === find("query")) find("query").select();
  });
  find("add").addEventListener("submit", async (event) => {
    event.preventDefault();
    const texts = find("more")
      .value.split(SEPARATORS)
      .filter((text) => text.trim());
    if (!texts.length) return;
    find("more").value = "";
    await events.add(...texts);
  });
  find("reset").addEventListener("click", () => {
    state.words[state.shown] = new Words();
    search(() => find("keywords").querySelector("button") ?? find("more"));
  });
  find("further").addEventListener("click", () => {
    state.size = Math.min(200, state.size + PAGE);
    search();
  });
  // A click beside a dialog closes it.
  for (const dialog of [find("item"), find("queries")]) {
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }
  document.addEventListener("keydown", (event) => {
    const { key, ctrlKey, altKey, metaKey, isComposing, target } = event;
    if (key !== "/" || ctrlKey || altKey || metaKey || isComposing || typed(target)) return;
    event.preventDefault();
    find("query").focus();
    find("query").select();
  });
  window.addEventListener("popstate", () => fromAddress());
}

/**
 * Whether a key belongs into what has the focus: not where a text box is empty or all its text is
 * marked, as after a search.
 */
function typed(target) {
  if (target.closest("select, dialog")) return true;
  const box = target.closest("input:not([type=radio])");
  return box !== null && box.selectionEnd - box.selectionStart < box.value.length;
}

function fromAddress() {
  const query = new URLSearchParams(location.search).get("q");
  if (query) begin(query, false);
}

function drawPage() {
  const { data, pairs, rules, examples, absent, problem, loading } = page;
  find("data").textContent = data
    ? `${many(data.items, "item")}, ${many(data.queries, "labelled query", "labelled queries")}`
    : "no data set";
  const shown = examples.map((text) => button({ onclick: () => begin(text) }, foreign(text)));
  const open = () => openQueries(state, events);
  const decided = () => openRules(rules, events);
  fill(
    find("examples"),
    data ? button({ id: "all", className: "link", onclick: open }, "Labelled queries") : null,
    rules.length ? button({ className: "link", onclick: decided }, "Merchants' rules") : null,
    shown,
  );
  show(find("examples"), (shown.length > 0 || rules.length > 0) && pairs.length > 0);
  show(find("welcome"), pairs.length > 0);
  const notices = [
    pairs.length
      ? ""
      : "The store has no item snapshot yet. Run cogr-index rebuild --side item, then " +
        "--side query, and reload this page.",
    absent && pairs.length
      ? `What serves (${absent}) is not in this store; the newest snapshot that is there is ` +
        "shown instead."
      : "",
    loading ? LOADING : "",
    problem ? `There are no labels and no text to compare with: ${problem}` : "",
  ].filter(Boolean);
  fill(
    find("notices"),
    notices.map((sentence) => notice(sentence)),
  );
}

async function start() {
  const ready = await during(async () => {
    page = await ask("page", {});
  }, start);
  if (!ready) return;
  state.pairs = page.pairs.slice(0, 2);
  state.words = state.pairs.map(() => new Words());
  drawPage();
  fromAddress();
  if (!location.search) find("query").focus();
}

listen();
start();
