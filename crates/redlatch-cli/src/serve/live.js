// Shows the page anew whenever the server has been looked at again. Without this script a reload does the same.
"use strict";
// Not relative: an address that was opened with the token in it has it in its base, too, and nothing may be fetched from there.
const events = new EventSource(location.origin + "/events");
let busy = false;
events.addEventListener("look", async () => {
  const typing = document.activeElement && document.activeElement.matches("input, select");
  if (busy || typing || document.hidden) return;
  busy = true;
  try {
    const answer = await fetch(location.origin + location.pathname + location.search, { cache: "no-store" });
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
