"""Parts of a page that proofs write: each between two comments that name it, so that several share a page and people can
write between them."""

HEADINGS = {"performance.md": "# Performance\n"}


def put(path, name, text):
    """Puts a proof's part into a page in place of the one before, or at the page's end."""
    begin, end = f"<!-- {name}: what follows is made by tests/show/{name} -->", f"<!-- end of {name} -->"
    page = path.read_text() if path.exists() else HEADINGS.get(path.name, "")
    part = f"{begin}\n\n{text.strip()}\n\n{end}\n"
    at, to = page.find(begin), page.find(end)
    if at >= 0 and to > at:
        page = page[:at] + part + page[to + len(end):].removeprefix("\n")
    else:
        page = page.rstrip("\n") + "\n\n" + part if page.strip() else part
    path.write_text(page)
