// Sends the request a button describes and shows status, header fields and time.
"use strict";

const answer = document.getElementById("answer");

document.getElementById("questions").addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  answer.textContent = "…";
  try {
    answer.textContent = await ask(button.dataset);
  } catch (error) {
    answer.textContent = "No answer: " + error.message;
  }
});

async function ask({ method = "GET", path, range, revalidate }) {
  const headers = {};
  if (range) headers.Range = range;
  if (revalidate !== undefined) {
    const first = await fetch(path, { cache: "no-store" });
    await first.arrayBuffer();
    const tag = first.headers.get("ETag");
    if (tag) headers["If-None-Match"] = tag;
  }
  const began = performance.now();
  const response = await fetch(path, { method, headers, cache: "no-store" });
  const bytes = (await response.arrayBuffer()).byteLength;
  const took = performance.now() - began;
  const asked = [`${method} ${path}`, ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`)];
  const told = [...response.headers].map(([name, value]) => `${name}: ${value}`);
  return [
    ...asked,
    "",
    `${response.status} ${response.statusText}`,
    ...told,
    "",
    `${bytes} bytes of body, ${took.toFixed(1)} ms`,
  ].join("\n");
}
