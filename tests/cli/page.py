"""Reads a page that sparkguard-report --html wrote, as a browser and as an XML parser would, and says what no page may hold."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

VOID = {"meta", "link"}
ELEMENTS = set("html head meta link title style body header main nav section h1 h2 h3 p ul li a div figure".split())
ELEMENTS |= set("table caption thead tbody tr th td time code bdi span".split())
DRAWN = set("svg title desc defs pattern rect path text circle".split())


class Strict(HTMLParser):
    """Each element is known, ends where it should, and refers to nothing outside."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.targets, self.headings = [], [], [], []

    def handle_starttag(self, tag, attributes):
        assert tag in ELEMENTS | DRAWN, tag
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on") and name not in ("srcset", "action", "ping"), name
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                assert value.startswith("#") or value == "data:,", value
                self.targets += [value[1:]] * value.startswith("#")
            self.targets += re.findall(r"url\(#([^)]*)\)", value)
            assert "url(" not in value.replace("url(#", ""), value
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def local(element):
    return element.tag.rpartition("}")[2]


class Page:
    def __init__(self, text, is_large=False):
        self.text = text
        self.root = ElementTree.fromstring(text.encode())
        if is_large:  # what holds of every page is shown on small ones
            return
        self.strict = Strict()
        self.strict.feed(text)
        self.strict.close()
        self.check()

    def check(self):
        """What holds of every page."""
        strict, style = self.strict, self.root.find("head/style").text
        assert strict.open == [] and len(set(strict.ids)) == len(strict.ids)
        assert set(strict.targets) <= set(strict.ids)
        assert not re.search(r"url\(|@import|https?:", style)
        assert set(re.findall(r"https?://[^\s\"'<]*", self.text)) <= {"http://www.w3.org/2000/svg"}
        assert "default-src 'none'" in self.root.find("head/meta[@http-equiv]").get("content")
        assert strict.headings[0] == 1 and strict.headings.count(1) == 1
        assert all(below <= above + 1 for above, below in zip(strict.headings, strict.headings[1:]))
        for table in self.root.iter("table"):
            assert table.find("caption").text
            assert all(cell.get("scope") in ("row", "col") for cell in table.iter("th"))
            widths = {len(row) for row in table.iter("tr")}
            assert len(widths) <= 1, "rows as wide as their headings"
        for drawing in self.root.iter():
            if local(drawing) == "svg":
                assert drawing.get("aria-hidden") == "true" or local(drawing[0]) == "title"

    def section(self, name):
        (section,) = [s for s in self.root.iter("section") if s.get("id") == name]
        return section

    def process(self, pid):
        """The section of the first process of that number."""
        return next(s for s in self.root.iter("section") if s.find("h3") is not None and words(s.find("h3")).startswith(f"Process {pid}:"))


def words(element):
    return re.sub(r"\s+", " ", "".join(element.itertext())).strip()


def table(section, caption):
    """The rows of a table, as texts; a header row comes first."""
    (found,) = [t for t in section.iter("table") if t.find("caption").text.startswith(caption)]
    return [[words(cell) for cell in row] for row in found.iter("tr")]


def facts(section, caption):
    return dict(table(section, caption))


def drawings(element):
    return [e for e in element.iter() if local(e) == "svg" and e.get("role") == "img" and e.get("viewBox")]
