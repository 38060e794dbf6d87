"""Drawings of sparkguard-report --plot, read as XML."""

import xml.etree.ElementTree as ElementTree

SECOND = 10**9
SVG = "{http://www.w3.org/2000/svg}"


def draw(report, path, *arguments, status=0):
    done = report.run("--plot", path, *arguments)
    assert done.returncode == status and done.stdout == "", done.stderr
    if status != 0:
        assert done.stderr.startswith("sparkguard-report: ") and done.stderr.count("\n") == 1
        return done.stderr
    root = ElementTree.parse(path).getroot()
    assert root.tag == SVG + "svg"
    return root


def words(root):
    return [text.text for text in root.iter(SVG + "text")]


def is_apart(a, b):
    """Two texts of the drawing, by a width that errs on the small side."""
    def box(text):
        size = float(text.get("font-size", 11))
        width, x = len(text.text) * size * 0.5, float(text.get("x"))
        left = {"end": x - width, "middle": x - width / 2}.get(text.get("text-anchor"), x)
        return left, left + width, float(text.get("y")) - size * 0.75, float(text.get("y")) + size * 0.2
    one, two = box(a), box(b)
    return one[1] <= two[0] or two[1] <= one[0] or one[3] <= two[2] or two[3] <= one[2]
