"""Tables and filmed episodes as small HTML pages, whole in themselves, for the report."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lerobot_pipeline.experiments.methods import Film

_STYLE = """
.results { font: 15px/1.45 system-ui, sans-serif; color: #1f2933; margin: 1.2rem 0; }
.results h1 { font-size: 1.2rem; margin: 0 0 .8rem; }
.results table { border-collapse: collapse; }
.results th { text-align: left; border-bottom: 2px solid #1f2933; vertical-align: bottom; }
.results td { border-bottom: 1px solid #d9e0e6; vertical-align: top; font-variant-numeric: tabular-nums; }
.results td, .results th { padding: .35rem .9rem .35rem 0; max-width: 26rem; overflow-wrap: break-word; }
.results .films { display: flex; flex-wrap: wrap; gap: 1.2rem; }
.results figure { margin: 0; width: 20rem; }
.results video { width: 100%; border: 1px solid #d9e0e6; }
"""
# Every rule begins with the class: the report's first page takes such a page in whole.


def table_page(title: str, frame: pd.DataFrame) -> str:
    """Return one page with one table."""
    table = frame.to_html(index=False, border=0, na_rep="–") if len(frame.columns) else "<p>Nothing to show.</p>"
    return _page(title, table)


def film_page(title: str, films: Sequence[Film]) -> str:
    """Return one page with videos side by side, their bytes in it."""
    figures = [
        f"<figure><video controls muted loop autoplay src='data:video/mp4;base64,{_base64(film.path)}'></video>"
        f"<figcaption><strong>{html.escape(film.policy)}</strong><br>{html.escape(film.outcome)}</figcaption></figure>"
        for film in films
    ]
    return _page(title, f"<div class='films'>{''.join(figures)}</div>" if figures else "<p>No episode was filmed.</p>")


def _page(title: str, body: str) -> str:
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style></head>\n<body><div class='results'><h1>{html.escape(title)}</h1>\n{body}\n"
        "</div></body></html>\n"
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
