// Shows the page anew whenever the server has been looked at again. Without this script a reload does the same.
"use strict";
const events = new EventSource("/events");
let busy = false;
events.addEventListener("look", async () => {
  const typing = document.activeElement && document.activeElement.matches("input, select");
  if (busy || typing || document.hidden) return;
  busy = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const [before, after] = [document.querySelector("main"), page.querySelector("main")];
    if (after && before.innerHTML !== after.innerHTML) before.replaceChildren(...after.childNodes);
  } catch {
    // The next event tries again.
  } finally {
    busy = false;
  }
});
