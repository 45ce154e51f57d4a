// Fetches the page again and replaces its main part; scrolling, selection and focus stay. Without scripts, reload the page.
setInterval(async () => {
  const all = (what) => [...document.querySelectorAll(what)];
  const isBusy = () => document.hidden || String(getSelection()) || document.activeElement.closest("form");
  if (isBusy()) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (!next || isBusy()) return;
    const lefts = all(".scroll").map((box) => box.scrollLeft);
    const places = "a, .scroll, section", focused = all(places).indexOf(document.activeElement);
    document.querySelector("main").replaceWith(next);
    all(".scroll").forEach((box, at) => { box.scrollLeft = lefts[at]; });
    all(places)[focused]?.focus({ preventScroll: true });
  } catch { document.title = "no connection - fenxi"; }
}, 5000);
