// The page's questions to the expander. A refusal is a sentence; a missing token is asked for once and kept for the tab.

import { find } from "./dom.js";

const TOKEN = "cogr-token";

export class Refused extends Error {}

/** One question and its answer. Throws Refused with a sentence, or AbortError. */
export async function ask(path, body, signal) {
  const answer = await send(path, body, signal);
  if (answer.status === 401) {
    await token(sessionStorage.getItem(TOKEN) !== null);
    return ask(path, body, signal);
  }
  const content = await read(answer);
  if (!answer.ok) throw new Refused(content.detail ?? unclear(answer));
  return content;
}

async function send(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const known = sessionStorage.getItem(TOKEN);
  if (known) headers.Authorization = `Bearer ${known}`;
  try {
    return await fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The expander can't be reached. Is cogr-ops serve still running?");
  }
}

async function read(answer) {
  try {
    return await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(unclear(answer));
  }
}

const unclear = (answer) => `The expander's answer can't be read (status ${answer.status}).`;

let asking = null;

/** Wait for a token; questions that wait for it together share one dialog. */
function token(again) {
  asking ??= new Promise((resolve) => {
    const dialog = find("token-dialog");
    const field = find("token");
    field.value = "";
    field.setAttribute("aria-invalid", again);
    find("token-title").textContent = again ? "That was not the token" : "This expander asks for a token";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    find("token-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, field.value);
      dialog.close();
      asking = null;
      resolve();
    };
    dialog.showModal();
  });
  return asking;
}
