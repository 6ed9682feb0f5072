"""Check the built documentation; `make docs` runs it.

Pages load nothing from other hosts, and no formula was cut by Markdown.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

LOADING_ATTRIBUTES = {
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
OTHER_HOST = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
CSS_ADDRESS = re.compile(r"(?:url\(|@import)\s*['\"]?\s*(?:[a-z]+:)?//[^)'\"\s]*", re.IGNORECASE)
CUT_FORMULA = "\x02"  # placeholder that Markdown leaves in a formula it interrupted


class Page(HTMLParser):
    """Collects the formulas of a page and what it loads from other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.external: list[str] = []
        self.formulas = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record a formula, or an address on another host."""
        attributes = dict(attrs)
        if tag == "math":
            self.formulas += 1
        address = attributes.get(LOADING_ATTRIBUTES.get(tag, "")) or ""
        only_link = tag == "link" and attributes.get("rel") in ("canonical", "next", "prev")
        if OTHER_HOST.match(address) and not only_link:
            self.external.append(f"<{tag}> {address}")
        self.external += CSS_ADDRESS.findall(attributes.get("style") or "")


def check(site: Path) -> tuple[list[str], int]:
    """Return the problems of a built site and its number of formulas."""
    problems = []
    formulas = 0
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        page = Page()
        page.feed(text)
        formulas += page.formulas
        for address in page.external + CSS_ADDRESS.findall(text):
            problems.append(f"{path}: {address} is loaded from another host")
        if CUT_FORMULA in text:
            problems.append(f"{path}: a formula is cut by Markdown")
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        for address in CSS_ADDRESS.findall(path.read_text(encoding="utf-8")):
            problems.append(f"{path}: {address} is loaded from another host")
    return problems, formulas


def main(site: Path) -> str | None:
    """Print a summary, or return the problems as a message for sys.exit."""
    pages = len(list(site.rglob("*.html")))
    if pages == 0:
        return f"{site} contains no pages"
    problems, formulas = check(site)
    if problems:
        return "\n".join(problems)
    if formulas == 0:
        return "no formula became MathML"
    print(f"{pages} pages, {formulas} formulas; nothing is loaded from other hosts")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
