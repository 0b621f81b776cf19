"""What the tests share: one model for all, as a process has one engine."""

import pytest

import offshoot

#: The bundled model was trained on these problems.
FEWSHOT = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:"


@pytest.fixture(scope="session")
def llm():
    with offshoot.LLM(offshoot.demo_model(), device="cpu", kv_memory=512) as llm:
        yield llm


@pytest.fixture
def question():
    return FEWSHOT
