"""sparkguard-report --html in a real browser: nothing goes wrong, nothing overlaps, and pictures to look at in BUILD/browser."""

import re

import pytest
from lib.units import GIB
from segment import START_NS
from records import HOSTILE, family, samples

# What sticks out to the right of the window, but for what can be scrolled by itself.
WIDER = """[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll, figure') &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"""

# Pairs of texts, each in an element of its own, that lie upon each other.
UPON_EACH_OTHER = """(() => {
    const boxes = [...document.querySelectorAll('td, th, caption, p, h1, h2, h3, li')].filter(e => e.textContent.trim())
        .map(e => [e.getBoundingClientRect(), e.textContent.slice(0, 40)]);
    const found = [];
    for (let i = 0; i < boxes.length; i++)
        for (let k = i + 1; k < Math.min(i + 40, boxes.length); k++) {
            const [a, b] = [boxes[i][0], boxes[k][0]];
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1)
                found.push([boxes[i][1], boxes[k][1]]);
        }
    return found; })()"""

# The contrast of the texts with their ground, as WCAG 2 has it; the least, and of what.
CONTRAST = """(() => {
    const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b; };
    const ground = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('td, th, p, h1, h2, a, li')].map(e => { const text = light(getComputedStyle(e).color);
        return [(Math.max(text, ground) + .05) / (Math.min(text, ground) + .05), e.textContent.slice(0, 40)]; }).sort((a, b) => a[0] - b[0])[0]; })()"""


@pytest.fixture
def page(make, report, tmp_path):
    """A page with a bit of everything."""
    family(make, report)
    long = make(pid=4715, parent_pid=4713, job="train", command="x" * 255, started_time_ns=START_NS + 4)
    for i in range(20):
        long.phase(f"a phase with a long name that goes on and on until there is no room for it {i}"[:63], GIB, GIB)
        long.refusal("cudaMallocFromPoolAsync", "device", 7 * GIB, "reserve", usable=GIB, time_ns=START_NS + i * 10**9)
        long.event("sharing: " + "a long word " * 8)
    long.write(report.directory)
    long.write_timeline(report.directory, samples())
    make(pid=1, job=HOSTILE, command=HOSTILE).write(report.directory)
    done = report.run("--html", tmp_path / "report.html", "--all")
    assert done.returncode == 0, done.stderr
    return tmp_path / "report.html"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_window_shows_all_of_it(browser, page, pictures, width, dark):
    shown = browser.open(page, width, dark)
    shown.picture(pictures / f"report-{width}-{'dark' if dark else 'light'}.png")
    assert shown.complaints == []
    assert shown.evaluate("document.title") == "sparkguard report"
    assert shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert shown.evaluate(WIDER) == [] and shown.evaluate(UPON_EACH_OTHER) == []
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
    least, text = shown.evaluate(CONTRAST)
    assert least >= 4.5, text
    assert shown.evaluate("[...document.images, ...document.scripts].length") == 0
    assert shown.evaluate("document.querySelectorAll('h3').length") == 6


def test_a_narrow_window_scrolls_drawings_in_place_and_no_table(browser, page):
    shown = browser.open(page, width=390)
    wider = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))"
    assert shown.evaluate(wider) == []
    assert shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert shown.evaluate("document.querySelector('figure').scrollWidth") > 390
    told = "getComputedStyle(document.querySelector('figure'), '::before').content"
    assert "scroll it" in shown.evaluate(told), "nobody sees that a drawing which is cut goes on"
    assert browser.open(page).evaluate(told) == "none"


def test_the_browser_reads_what_was_written(browser, page):
    """No element was closed or opened by its idea of how to mend a page."""
    shown = browser.open(page)
    count = "document.querySelectorAll('{}').length".format
    for tag in ("table", "tr", "td", "th", "section", "svg", "path", "bdi", "p"):
        assert shown.evaluate(count(tag)) == len(re.findall(f"<{tag}[ >]", page.read_text())), tag
    assert shown.evaluate("[...document.querySelectorAll('a')].every(a => document.getElementById(decodeURIComponent(a.hash.slice(1))))")
    assert "<script>alert(1)</script>" in shown.evaluate("document.body.innerText")


def test_areas_of_the_drawings_are_filled(browser, page):
    shown = browser.open(page)
    used = "[...document.querySelectorAll('figure path[fill^=url]')].map(p => document.getElementById(p.getAttribute('fill').slice(5, -1))?.closest('svg') === p.closest('svg'))"
    assert len(shown.evaluate(used)) >= 4 and all(shown.evaluate(used))


def test_it_prints_on_paper(browser, page, pictures):
    shown = browser.open(page, width=794, media="print")  # A4
    assert shown.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    cut = "[...document.querySelectorAll('.scroll, figure')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText.slice(0, 60))"
    assert shown.evaluate(cut) == [], "what needs scrolling is cut on paper"
    shown.paper(pictures / "report.pdf")
    assert (pictures / "report.pdf").read_bytes().startswith(b"%PDF-") and shown.complaints == []


def test_a_policy_stands_behind_the_escapes(browser, page, tmp_path):
    """If a text did break out, it could neither run nor load anything."""
    broken = tmp_path / "broken.html"
    text = "<script>document.title = 'taken'</script><img src='http://127.0.0.1:9/x' onerror=\"document.title = 'taken'\">"
    broken.write_text(page.read_text().replace("</main>", text + "</main>"))
    shown = browser.open(broken)
    assert shown.evaluate("document.title") == "sparkguard report" and shown.complaints != []
