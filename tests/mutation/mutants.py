"""Makes mutants: one small change of one line of C each, as a programmer could have made it by mistake.

    sites(text)      every change that can be made: (line, kind, the line afterwards)

Comments, strings, preprocessor lines and lines of declarations of types are left alone. Whether a mutant compiles, and whether the code
differs at all, the compiler says.
"""

import re

STRING = re.compile(r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'")
SWAPS = [
    ("relation", re.compile(r" (<=|>=|==|!=|<|>) "), {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}),
    ("logic", re.compile(r" (&&|\|\|)(?= |$)"), {"&&": "||", "||": "&&"}),
    ("arithmetic", re.compile(r" (\+|-) (?=[\w(])"), {"+": "-", "-": "+"}),
    ("step", re.compile(r"(\+\+|--|\+=|-=)"), {"++": "--", "--": "++", "+=": "-=", "-=": "+="}),
    ("truth", re.compile(r"\b(true|false)\b"), {"true": "false", "false": "true"}),
    ("negation", re.compile(r"(?<![\w!])(!)(?=[\w(])"), {"!": ""}),
]
NUMBER = re.compile(r"(?<![\w.%])(\d+)([uUlL]*)(?![\w.])")
CONDITION = re.compile(r"^(\s*(?:\} else )?(?:if|while) )\((.+)\)(\s*\{?)$")
# A call, an assignment, break or continue, alone on its line.
STATEMENT = re.compile(r"^(\s+)(?:\(void\))?(?:(?:break|continue)|[\w.\->\[\]*()]+ [-+|&^*/]?= [^=].*|[\w.\->\[\]]+(?:\+\+|--)|\w+\(.*\))(;)$")
DECLARATION = re.compile(r"^\s*(?:static |const |struct |enum |union |unsigned |uint\w+_t |int\d*(?:_t)? |size_t |bool |char |void |long |extern |typedef |#|case |default:)")


def code_of(text):
    """The lines without comments and with the insides of strings blanked, of the same lengths; None for those of the preprocessor."""
    blanked = re.sub(r"/\*.*?\*/", lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.DOTALL)
    blanked = re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), blanked)
    lines, goes_on = [], False
    for line in blanked.split("\n"):
        is_directive = goes_on or line.lstrip().startswith("#")
        goes_on = is_directive and line.endswith("\\")
        lines.append(None if is_directive else STRING.sub(lambda match: match.group()[0] + "s" * (len(match.group()) - 2) + match.group()[-1], line))
    return lines


def is_balanced(text):
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0


def changes(code, line):
    """The changes of one line, whose code is without what is in strings: (kind, line afterwards)."""
    for kind, pattern, others in SWAPS:
        for match in pattern.finditer(code):
            yield kind, line[: match.start(1)] + others[match.group(1)] + line[match.end(1) :]
    for match in NUMBER.finditer(code):
        yield "number", line[: match.start(1)] + str(int(match.group(1)) + 1) + line[match.end(1) :]
        if match.group(1) == "1":
            yield "number", line[: match.start(1)] + "0" + line[match.end(1) :]
    if (match := CONDITION.match(code)) and is_balanced(match.group(2)):
        yield "condition", f"{match.group(1)}(!({line[match.start(2) : match.end(2)]})){match.group(3)}"
    if (match := STATEMENT.match(code)) and not DECLARATION.match(code):
        yield "statement", match.group(1) + ";"


def sites(text):
    """All of a file: (number of the line, from 1; kind; the line afterwards). Only inside functions: the line is indented."""
    lines = text.split("\n")
    for number, (code, line) in enumerate(zip(code_of(text), lines), 1):
        if code is None or not code.startswith(" ") or DECLARATION.match(code) and "=" not in code:
            continue
        yield from ((number, kind, after) for kind, after in changes(code, line) if after != line)
