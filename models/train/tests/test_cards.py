"""The shipped cards have the texts that `fit` puts into them."""

import pathlib

import pytest

MODELS = pathlib.Path(__file__).parents[2]
TEXTS = sorted((MODELS / "train/about").glob("*.txt"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_each_paragraph_is_in_the_card(text):
    card = MODELS / text.stem.removesuffix("-limits") / "CARD.md"
    in_card = " ".join(card.read_text().split())
    paragraphs = (" ".join(it.split()) for it in text.read_text().split("\n\n"))
    assert [it for it in paragraphs if it not in in_card] == []
