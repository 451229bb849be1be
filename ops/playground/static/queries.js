// All labelled queries in a dialog: searched, sorted, each with how the pairs do by the keywords of their query snapshots.

import { ask, Refused } from "./asking.js";
import { count, decimals, fill, find, foreign, make, many, show } from "./dom.js";

const STEP = 50;
const PAUSE = 150;
const SORTS = { worst: "F1, worst first", best: "F1, best first", change: "where A and B differ most", text: "text" };
const filter = { match: "", sort: "worst", size: STEP };
let under = new AbortController();
let waiting = 0;

/** Open the dialog for the pairs of the page; `events.search` is called with a query that is taken. */
export function openQueries(state, events) {
  const dialog = find("queries");
  const close = make("button", { type: "button", className: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", () => dialog.close());
  const match = make("input", { type: "search", id: "match", value: filter.match, maxLength: 1024, autocomplete: "off", spellcheck: false });
  const sort = make("select", { id: "sort" }, Object.entries(SORTS).filter(([way]) => way !== "change" || state.pairs.length > 1)
    .map(([way, label]) => make("option", { value: way, selected: way === filter.sort }, label)));
  const look = (changed) => { Object.assign(filter, { size: STEP }, changed); load(state, events); };
  match.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => look({ match: match.value }), PAUSE); });
  sort.addEventListener("change", () => look({ sort: sort.value }));
  fill(dialog,
    make("div", { className: "head" }, make("h2", { id: "queries-title" }, "Labelled queries"), close),
    make("p", { className: "quiet" }, "By the keywords of each pair's query snapshot; a query that it does not hold is searched by itself. Queries that the keywords were learned from are marked: they flatter."),
    make("div", { className: "choose" },
      make("p", {}, make("label", { htmlFor: "match" }, "Search them"), match),
      make("p", {}, make("label", { htmlFor: "sort" }, `Sort ${"AB"[state.shown]} by`), sort)),
    make("p", { id: "queries-said", className: "quiet", role: "status" }),
    make("table", { id: "queries-found", className: "queries-found" }),
    make("button", { type: "button", id: "queries-more", className: "wide", hidden: true }));
  find("queries-more").addEventListener("click", () => look({ size: Math.min(1000, filter.size + STEP) }));
  dialog.showModal();
  match.focus();
  look({});
}

async function load(state, events) {
  under.abort();
  under = new AbortController();
  const pairs = state.pairs.map(({ item, query }) => ({ item, query }));
  try {
    if (!find("queries-found").children.length) find("queries-said").textContent = "Searching all of them …";
    draw(await ask("queries", { pairs, shown: state.shown, ...filter }, under.signal), pairs.length, events);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) throw error;
    fill(find("queries-said"), foreign(error.message));
  }
}

function draw(found, pairs, events) {
  const letters = ["A", "B"].slice(0, pairs);
  const means = found.mean.map((mean, at) => (mean === null ? null : `${letters[at]} ${decimals(mean, 3)}`)).filter(Boolean);
  const over = found.split === "test" ? "mean F1 of the test queries" : "mean F1 of all";
  find("queries-said").textContent = [many(found.total, "query", "queries"), means.length ? `${over}: ${means.join(", ")}` : ""].filter(Boolean).join(" · ");
  fill(find("queries-found"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Query"), make("th", { scope: "col" }, "relevant"),
      letters.map((letter) => make("th", { scope: "col" }, `F1 ${letter}`)))),
    make("tbody", {}, found.queries.map((query) => row(query, events))));
  const left = found.total - found.queries.length;
  show(find("queries-more"), left > 0 && found.queries.length < 1000);
  find("queries-more").textContent = `Show more (${count(left)} left)`;
}

function row(query, events) {
  const button = make("button", { type: "button", className: "link" }, foreign(query.text));
  button.addEventListener("click", () => { find("queries").close(); events.search(query.text); });
  const figure = (value) => make("td", {}, decimals(value, 2));
  const fitted = query.split === "test" ? null : make("span", { className: "quiet" }, ` ${query.split}`);
  return make("tr", {}, make("th", { scope: "row" }, button, fitted), make("td", {}, count(query.relevant)), query.f1.map(figure));
}
