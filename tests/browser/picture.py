"""Takes the picture of a page as a telephone shows it: picture.py PAGE.html PICTURE.png. `make picture` calls it."""

import base64
import shutil
import sys
import tempfile
from pathlib import Path

from conftest import NAMES, Browser

WIDTH, HEIGHT, SCALE = 390, 2180, 0.65


def main():
    page, picture = map(Path, sys.argv[1:])
    program = next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory() as scratch:
        browser = Browser(program, Path(scratch))
        shown = browser.open(page.resolve(), WIDTH, dark=True)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": SCALE}
        shot = shown.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        browser.close()
    picture.write_bytes(base64.b64decode(shot["data"]))


if __name__ == "__main__":
    main()
