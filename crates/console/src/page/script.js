// Fetches the page again and replaces its main part, so that scrolling and selection stay. Without scripts, reload the page.
setInterval(async () => {
  if (document.hidden || String(getSelection())) return;
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) return;
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (next) document.querySelector("main").replaceWith(next);
  } catch { document.title = "no connection - fenxi"; }
}, 5000);
