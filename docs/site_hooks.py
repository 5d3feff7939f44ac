"""For mkdocs: the repository's own pages (README.md, SECURITY.md, ...) join docs/, and links follow them.

A link to another file of the repository becomes its path in code, because the site does not carry it; one to a file
that does not exist is a warning, which `mkdocs build --strict` fails for.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parent.parent
# In the repository, and on the site.
PAGES = {
    "README.md": "index.md",
    "client/README.md": "client.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The repository's pages, as if they lay in docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Every link as the site has it."""
    origin = next((source for source, target in PAGES.items() if target == page.file.src_uri), None)
    folder = PurePosixPath(origin or f"docs/{page.file.src_uri}").parent

    def rewritten(match: re.Match[str]) -> str:
        image, text, path, anchor = match[1], match[2], match[3], match[4] or ""
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        target = PurePosixPath(os.path.normpath(folder / path))
        on_site = PAGES.get(str(target)) or (str(target.relative_to("docs")) if target.is_relative_to("docs") else None)
        if on_site is not None and files.get_file_from_path(on_site):
            return f"{image}[{text}]({on_site}{anchor})"
        if not (ROOT / target).exists():
            log.warning("%s links to %s, which does not exist", origin or page.file.src_uri, path)
        return f"{text} (`{target}`)" if text != str(target) else f"`{target}`"

    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(rewritten, part) for number, part in enumerate(parts))
