"""The page in a browser that runs without a screen, driven by the DevTools protocol over a pipe.

usage: browser.py check URL                     looks at the page, and fails with what is wrong
       browser.py picture URL FILE WIDTH HEIGHT [SECONDS]   a picture, that many seconds later
"""

import base64
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
WIDTHS = (360, 768, 1280)

# Elements that reach beyond the right edge, except in a box that scrolls.
TOO_WIDE = """[...document.querySelectorAll("body *")]
    .filter(it => !it.closest("table") && it.getBoundingClientRect().right > WIDTH + 0.5)
    .map(it => it.outerHTML.slice(0, 80))"""
COLUMN = """(() => {
    const th = document.querySelector("#flows th[aria-sort]");
    const scale = {"": 1, k: 1e3, M: 1e6, G: 1e9};
    const value = text => parseFloat(text) * scale[text.replace(/[^kMG]/g, "")];
    const cells = [...document.querySelectorAll("#flows tr")].slice(1);
    return [th.textContent, th.ariaSort, cells.map(it => value(it.cells[th.cellIndex].textContent))];
})()"""


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ours, theirs = os.pipe(), os.pipe()

        def as_3_and_4():
            pair = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (ours[0], theirs[1])]
            os.dup2(pair[0], 3)
            os.dup2(pair[1], 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
            + ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
            + ["--hide-scrollbars", "--remote-debugging-pipe"]
            + [f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=as_3_and_4,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.out, self.into = ours[1], os.fdopen(theirs[0], "rb")
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(it["targetId"] for it in targets if it["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for part in ("Page", "Runtime", "Log"):
            self.ask(part + ".enable")

    def read(self):
        """The next message."""
        while b"\0" not in self.rest:
            more = self.into.read1(1 << 20)
            if not more:
                raise SystemExit("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.out, json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def run(self, script):
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script):
        end = time.monotonic() + PATIENCE_S
        while not self.run(script):
            if time.monotonic() > end:
                raise SystemExit(f"in vain: {script}")
            time.sleep(0.02)

    def load(self, begin):
        """Begins to load a page, and waits until it is there."""
        self.run("window.isBefore = true")
        begin()
        self.until('!window.isBefore && document.readyState == "complete"')

    def open(self, url):
        self.load(lambda: self.ask("Page.navigate", url=url))

    def click(self, selector):
        self.load(lambda: self.run(f"document.querySelector({json.dumps(selector)}).click()"))

    def press(self, key):
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key,
                 windowsVirtualKeyCode=code, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def look(self, width, height, colours):
        """A window of this size, in light or dark."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=width < 600)
        preference = {"name": "prefers-color-scheme", "value": colours}
        self.ask("Emulation.setEmulatedMedia", features=[preference])

    def errors(self):
        """What the console has said."""
        self.run("0")
        wrong = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                wrong.append(params["exceptionDetails"]["text"])
            elif event.get("method") == "Log.entryAdded":
                wrong.append(params["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled":
                wrong.append(str(params["args"]))
        return wrong

    def close(self):
        self.process.kill()
        self.process.wait()


def expect(holds, what):
    if not holds:
        raise SystemExit(what)


def check_widths(browser, url):
    """No page is wider than the screen, and dark is dark."""
    grounds = set()
    for colours in ("light", "dark"):
        for width in WIDTHS:
            browser.look(width, 800, colours)
            browser.open(url)
            for page in ("the page", "a flow"):
                wide = browser.run(TOO_WIDE.replace("WIDTH", str(width)))
                scrolled = browser.run("document.documentElement.scrollWidth")
                expect(not wide and scrolled <= width, f"{page} at {width}: {scrolled} {wide}")
                if page == "the page":
                    browser.click("#flows td a")
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    expect(len(grounds) == 2, f"light and dark: {grounds}")


def check_links(browser, url):
    """Sorting, filters and the explanation, without a script of the page."""
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(url)
    for way in ("descending", "ascending"):
        browser.click("#flows th:nth-child(8) a")
        title, aria, values = browser.run(COLUMN)
        expect([title, aria] == ["Bytes", way], f"sorted by {title}, {aria}")
        expect(len(values) > 1, "flows")
        expect(values == sorted(values, reverse=way == "descending"), f"{way}: {values}")
    host = browser.run('document.querySelector("#hosts td a").textContent')
    browser.click("#hosts td a")
    expect(browser.run('document.querySelector("[name=host]").value') == host, "the filter's host")
    hosts = browser.run('[...document.querySelectorAll("#hosts td:first-child")].map(it => it.textContent)')
    expect(hosts == [host], f"filtered by host: {hosts}")
    sort = browser.run('document.querySelector("[type=hidden]").value')
    expect(sort == "-bytes", f"the form keeps the order: {sort}")
    browser.run('document.querySelector("[name=host]").value = "<b>"')
    browser.load(lambda: browser.run('document.querySelector("form").requestSubmit()'))
    problem = browser.run('document.querySelector(".problem").textContent')
    expect(problem.startswith('no host "<b>"'), problem)
    number = browser.run('document.querySelector("#flows td a").href').split("=")[-1]
    browser.click("#flows td a")
    text = browser.run('document.querySelector("pre").textContent')
    expect(text.startswith(f"flow {number} ") and "\nwhy " in text and "\nwritten" in text, text)
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)


def check_keys(browser, url):
    """The first key leads to the skip link; the page renews itself under the reader's hands."""
    hurry = "{ const set = setInterval; setInterval = (what, ms) => set(what, 50); }"
    browser.ask("Page.addScriptToEvaluateOnNewDocument", source=hurry)
    browser.look(360, 800, "light")
    browser.open(url)
    browser.press("Tab")
    browser.until('document.activeElement.className == "skip"')
    expect(browser.run("document.activeElement.getBoundingClientRect().left >= 0"), "skip link")
    browser.press("Enter")
    browser.until('document.activeElement.id == "flows"')
    browser.press("Tab")
    browser.until('document.activeElement.className == "scroll"')
    browser.press("Tab")
    browser.until('document.activeElement.textContent == "Label"')
    browser.run('document.querySelector("#flows .scroll").scrollLeft = 40')
    browser.run('document.querySelector("main").id = "old"')
    browser.until('!document.querySelector("#old")')
    browser.until('document.querySelector("#flows .scroll").scrollLeft == 40')
    browser.until('document.activeElement.closest("#flows").contains(document.activeElement)')
    expect(browser.run("document.activeElement.textContent") == "Label", "the focus stays")


def main():
    what, url, *rest = sys.argv[1:]
    browser = Browser()
    try:
        if what == "check":
            check_widths(browser, url)
            check_links(browser, url)
            check_keys(browser, url)
            expect(not browser.errors(), f"console: {browser.errors()}")
        else:
            file, width, height, *seconds = rest
            browser.look(int(width), int(height), "light")
            time.sleep(float(seconds[0]) if seconds else 0)
            browser.open(url)
            shot = browser.ask("Page.captureScreenshot", optimizeForSpeed=False)["data"]
            with open(file, "wb") as out:
                out.write(base64.b64decode(shot))
    finally:
        browser.close()


main()
