"""Fails where the built site would fetch anything from elsewhere: it must read offline. Or where a formula was cut by
Markdown, which leaves marks of its own in it. `make docs` runs it.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
    "use": "href",
    "image": "href",
}
ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"(?:url\(|@import)\s*['\"]?\s*(?:[a-z]+:)?//[^)'\"\s]*", re.IGNORECASE)


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.math = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.math += tag == "math"
        address = given.get(FETCHED.get(tag, "")) or ""
        plain_link = tag == "link" and given.get("rel") in ("canonical", "next", "prev")
        if ELSEWHERE.match(address) and not plain_link:
            self.found.append(f"<{tag}> {address}")
        self.found += IN_CSS.findall(given.get("style") or "")


def main(site: Path) -> str | None:
    """What is wrong, or nothing."""
    wrong, formulas, pages = [], 0, sorted(site.rglob("*.html"))
    if not pages:
        return f"{site} has no pages"
    for path in pages:
        page = Page()
        text = path.read_text(encoding="utf-8")
        page.feed(text)
        formulas += page.math
        wrong += [
            f"{path}: {what} is fetched from elsewhere"
            for what in page.found + IN_CSS.findall(text)
        ]
        wrong += [f"{path}: a formula is cut by Markdown"] if "\x02" in text else []
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        wrong += [
            f"{path}: {what} is fetched from elsewhere"
            for what in IN_CSS.findall(path.read_text(encoding="utf-8"))
        ]
    if wrong:
        return "\n".join(wrong)
    if formulas == 0:
        return "no formula became MathML"
    print(f"{len(pages)} pages, {formulas} formulas; nothing is fetched from elsewhere")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
