// What was found: the pairs side by side, hits with what matched, figures, the baseline, what was
// missed.

import { button, count, decimals, extra, fill, find, foreign, make, many } from "./dom.js";
import { show, tag } from "./dom.js";

/** The two pairs to choose from: a radio button, a list of pairs, and how each does. */
export function showPairs(state, choices, answers, events) {
  const cards = state.pairs.map((pair, at) => {
    const letter = "AB"[at];
    const radio = make("input", {
      type: "radio",
      name: "shown",
      id: `shown-${at}`,
      checked: at === state.shown,
      onchange: () => events.switchTo(at),
    });
    const choose = () => events.choose(at, choices[Number(select.value)]);
    const select = make(
      "select",
      { "aria-label": `Snapshots of ${letter}`, onchange: choose },
      choices.map((choice, number) =>
        make("option", { value: number, selected: choice === pair }, name(choice)),
      ),
    );
    return make(
      "div",
      { className: "pair" },
      make(
        "label",
        { htmlFor: radio.id },
        radio,
        make("strong", {}, letter),
        make("span", { className: "sum" }, sum(answers?.[at])),
      ),
      select,
      make("p", { className: "ids quiet" }, `${pair.item} · ${pair.query ?? "no query snapshot"}`),
    );
  });
  fill(find("pairs"), find("pairs").firstElementChild, cards);
}

/**
 * A pair in a list, told from every other one: by the beginnings of the two content hashes, where
 * all else is the same.
 */
function name(choice) {
  const when = choice.created.replace("T", " ").slice(0, 16);
  const hashes = [choice.item, choice.query]
    .map((id) => id?.slice(-12, -6) ?? "no queries")
    .join("+");
  return [choice.serving ? "serving" : "", choice.writer, hashes, when]
    .filter(Boolean)
    .join(" · ");
}

function sum(answer) {
  if (!answer) return "…";
  const found = many(answer.total, "item");
  return answer.figures ? `${found} · F1 ${decimals(answer.figures.f1, 2)}` : found;
}

/** The hits of the pair that is shown. */
export function showHits(state, answer, words, events) {
  const beside = state.pairs.length > 1 ? "BA"[state.shown] : null;
  const best = Math.max(...answer.hits.map((hit) => hit.score)) || 1;
  const hits = answer.hits.map((hit) => {
    const inSet = hit.tier === "set";
    const elsewhere = beside && hit.elsewhere === false ? tag(`not in ${beside}`) : null;
    const line = title(hit, events, inSet ? elsewhere : tag("by text"));
    const part = ([keyword, score]) => matched(keyword, score, words);
    const all = Object.entries(hit.matched).map(part);
    if (hit.words) all.push(make("li", {}, "text", scored(hit.words)));
    const parts = make("ul", { className: "matched" }, all);
    return item(hit, inSet ? "" : "beyond", line, extra(hit.fields), bar(hit, best, words), parts);
  });
  const cut = make("li", { className: "cut" }, `${count(answer.more)} more by text`);
  if (hits.length > answer.total) hits.splice(answer.total, 0, cut);
  const none = answer.keywords.length
    ? "No item has one of these keywords or words of the query."
    : "There is no keyword to search for.";
  fill(find("hits"), hits.length ? hits : empty(none));
  const left = answer.total + answer.more - answer.hits.length;
  show(find("further"), left > 0 && answer.hits.length < 200);
  find("further").textContent = `Show more (${count(left)} left)`;
  const before = words.changed ? state.before[state.shown] : null;
  const entities = make("small", {}, ` of ${count(answer.entities)}`);
  figures(find("figures"), answer, before, entities);
  showMissed(answer, events);
}

const item = (hit, kind, ...parts) =>
  make("li", { className: `hit ${hit.relevant ? "relevant" : ""} ${kind}` }, parts);

const matched = (keyword, score, words) =>
  make(
    "li",
    { className: `tone${words.tone(keyword)}` },
    make("span", { className: "dot", "aria-hidden": "true" }),
    foreign(keyword),
    scored(score),
  );

const scored = (score) => make("span", { className: "part" }, ` ${decimals(score, 3)}`);

function title(hit, events, more = null) {
  const given = {
    className: "link title",
    title: `${hit.id}: its keywords and queries`,
    onclick: () => events.open(hit.id),
  };
  const tags = [hit.relevant ? tag("relevant", "good") : null, more];
  return make(
    "div",
    { className: "line" },
    button(given, foreign(hit.text || hit.id)),
    make("span", { className: "tags" }, tags),
    make("span", { className: "score" }, decimals(hit.score, 3)),
  );
}

/** The score as a bar, cut into the parts of its keywords and of the text. */
function bar(hit, best, words) {
  const tone = ([keyword, part]) => [`tone${words.tone(keyword)}`, part];
  const parts = [...Object.entries(hit.matched).map(tone), ["plain-tone", hit.words]];
  const pieces = parts.map(([className, part]) => {
    const piece = make("span", { className });
    piece.style.width = `${(100 * part) / best}%`;
    return piece;
  });
  return make("div", { className: "bar", "aria-hidden": "true" }, pieces);
}

const empty = (text) => make("li", { className: "empty" }, text);

const FIGURES = { p: "P", r: "R", f1: "F1" };

const row = (label, ...value) =>
  make("div", {}, make("dt", {}, label), make("dd", {}, ...value));

/** Size of the retrieved set and its figures, with what changed since the answer `before`. */
function figures(list, found, before, beside) {
  const rows = (labels, now, old) =>
    Object.entries(now ? labels : {}).map(([name, label]) =>
      row(label, decimals(now[name], 2), change(now[name], old?.[name], 2)),
    );
  fill(
    list,
    row("items", decimals(found.total, 0), beside, change(found.total, before?.total, 0)),
    found.more ? row("more by text", count(found.more)) : null,
    rows(FIGURES, found.figures, before?.figures),
  );
}

function change(value, old, places) {
  if (old === undefined || decimals(value, places) === decimals(old, places)) return null;
  const kind = places ? (value > old ? "up" : "down") : "";
  return make(
    "small",
    { className: `delta ${kind}` },
    ` ${value > old ? "+" : "−"}${decimals(Math.abs(value - old), places)}`,
  );
}

function showMissed(answer, events) {
  const missed = answer.missed ?? [];
  show(find("missed"), missed.length > 0);
  const [summary, list] = find("missed").children;
  summary.textContent = `${many(answer.missed_total ?? 0, "relevant item")} not in the set`;
  const link = ({ id, title }) =>
    button({ className: "link", onclick: () => events.open(id) }, foreign(title));
  fill(
    list,
    missed.map((one) => make("li", {}, link(one))),
  );
}

/** The baseline's hits; a sentence instead where there is none. */
export function showBaseline(found, events) {
  const best = found.hits[0]?.score ?? 1;
  const hits = found.hits.map((hit, at) => {
    const whole = make("span", { className: "plain-tone" });
    whole.style.width = `${(100 * hit.score) / best}%`;
    const line = make("div", { className: "bar", "aria-hidden": "true" }, whole);
    return item(hit, at >= found.cut ? "beyond" : "", title(hit, events), line);
  });
  if (hits.length > found.cut)
    hits.splice(found.cut, 0, make("li", { className: "cut" }, "as many as the set has"));
  fill(find("baseline"), hits.length ? hits : empty("No item's text has one of these words."));
  const measured = { total: found.cut, figures: found.cut && found.figures };
  figures(find("baseline-figures"), measured, null, make("small", {}, " best ones"));
}

export function showNoBaseline(sentence) {
  fill(find("baseline"), empty(sentence));
  fill(find("baseline-figures"));
}
