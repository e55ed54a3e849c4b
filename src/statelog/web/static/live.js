// Keeps what is live of a page up to date. Without it the page is as good, and as old as its last load.
"use strict";
const live = document.getElementById("live");
const status = document.getElementById("status");
const url = document.body.dataset.events;

function show(html) {
  const open = [...live.querySelectorAll("details[open]")].map((one) => one.id);
  const focused = document.activeElement instanceof HTMLElement && live.contains(document.activeElement)
    ? document.activeElement.getAttribute("aria-label") || document.activeElement.getAttribute("href") : null;
  const scrolled = [...live.querySelectorAll(".scroll")].map((one) => [one.getAttribute("aria-label"), one.scrollLeft]);
  live.innerHTML = html;
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const one of live.querySelectorAll(".scroll, a, summary")) {
    const name = one.getAttribute("aria-label") || one.getAttribute("href");
    const was = scrolled.find(([label]) => label === name);
    if (was) one.scrollLeft = was[1];
    if (focused && name === focused) one.focus({ preventScroll: true });
  }
}

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

if (live && url) {
  const source = new EventSource(url);
  source.onopen = () => say("live");
  source.onmessage = (event) => { say("live"); show(event.data); };
  source.onerror = () => say("not live: the server does not answer; trying again");
}
