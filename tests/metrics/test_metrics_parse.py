"""The metrics page: what is read, what is refused, and that nothing else can come out."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import names
from controller.metrics import Limits, MetricsError, parse
from controller.metrics.parse import read
from controller.policy.job.types import Page, ScrapeOutcome, ScrapeView
from controller.policy.types import Attempt, EvalPoint

LIFE = "1-1732186000"


def score(step: object, value: object, metric: str = "gold", attempt: str = LIFE) -> str:
    return f'rlhf_eval_score{{metric="{metric}",step="{step}",attempt="{attempt}"}} {value}\n'


def page(*parts: str) -> bytes:
    return "".join(parts).encode()


def refused(body: bytes, metric: str = "gold", limits: Limits | None = None) -> MetricsError:
    with pytest.raises(MetricsError) as caught:
        parse(body, metric, limits or Limits())
    return caught.value


def test_a_metric_whose_name_is_as_long_as_a_spec_allows_is_seen() -> None:
    name = "n" * 200
    assert parse(page(score(10, 0.5, metric=name)), name).metrics_seen == (name,)


def test_a_whole_page_becomes_a_view() -> None:
    view = parse(
        page(
            "# HELP rlhf_eval_score Score.\n# TYPE rlhf_eval_score gauge\n",
            score(20, 0.75),
            score(10, 0.5),
            'rlhf_eval_score_stderr{metric="gold",step="20",attempt="1-1732186000"} 0.01\n',
            'rlhf_eval_samples{metric="gold",step="20",attempt="1-1732186000"} 256.0\n',
            score(20, 0.1, metric="val-core/gsm8k/acc/mean@8"),
            'rlhf_evals_total{metric="gold",attempt="1-1732186000"} 2\n',
            "rlhf_proxy_reward 1.5\nrlhf_kl 0.25\nrlhf_loss 0.5\nrlhf_step 24\nrlhf_total_steps 4000\n",
            "rlhf_checkpoint_step 20\nrlhf_resumed_step 0\nrlhf_request_served 3\n",
            'rlhf_evaluator_info{version="gold-v2"} 1\n',
            'process_cpu_seconds_total{a="b"} 3\n',
        ),
        "gold",
    )
    life = Attempt(1, "1732186000")
    assert view == ScrapeView(
        outcome=ScrapeOutcome.OK,
        metrics_seen=("gold", "val-core/gsm8k/acc/mean@8"),
        points=(EvalPoint(10, 0.5, life), EvalPoint(20, 0.75, life, 0.01, 256)),
        evals_total=2,
        proxy=1.5,
        kl=0.25,
        loss=0.5,
        step=24,
        total_steps=4000,
        checkpoint_step=20,
        resumed_step=0,
        request_served=3,
        evaluator="gold-v2",
    )


def test_an_empty_page_is_valid_and_says_nothing() -> None:
    assert parse(b"", "gold") == ScrapeView(outcome=ScrapeOutcome.OK)


def test_unknown_metric_leaves_no_points_but_lists_the_names_seen() -> None:
    view = parse(page(score(1, 2, metric="b"), score(1, 2, metric="a"), score(2, 2, metric="a")), "gold")
    assert (view.points, view.metrics_seen) == ((), ("a", "b"))


def test_names_seen_are_capped_and_fit_for_a_message() -> None:
    many = page(*(score(1, 1, metric=f"m{i:03}") for i in range(100)), score(1, 1, metric="a\\n\x1b[31m"))
    seen = parse(many, "gold", Limits(names=5)).metrics_seen
    assert seen == ("a\ufffd\ufffd[31m", "m000", "m001", "m002", "m003")


def test_points_of_several_lives_are_in_the_pages_order_and_the_newest_are_kept() -> None:
    body = page(*(score(s, s, attempt=a) for a in ("10-5", "9-7", "9-70") for s in (30, 2, 100)))
    points = parse(body, "gold", Limits(points=5)).points
    assert [(p.attempt, p.step) for p in points] == [
        (Attempt(9, "7"), 30),
        (Attempt(9, "7"), 100),
        (Attempt(9, "70"), 2),
        (Attempt(9, "70"), 30),
        (Attempt(9, "70"), 100),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("NaN", math.nan), ("+Inf", math.inf), ("-Inf", -math.inf), ("1e999", math.inf), ("9" * 400, math.inf)],
)
def test_a_score_that_is_not_finite_is_passed_on_and_named(text: str, value: float) -> None:
    view = parse(page(score(10, 0.5), score(20, text)), "gold")
    assert view.outcome is ScrapeOutcome.OK
    assert view.points[0].score == 0.5
    assert math.isnan(view.points[1].score) if math.isnan(value) else view.points[1].score == value
    assert view.message == f"gold at step 20 is {value}: this eval is ignored, scores must be finite"


def test_scores_that_are_not_finite_are_one_sentence() -> None:
    view = parse(page(score(5, 0.5), *(score(step, "NaN") for step in range(10, 70, 10))), "gold")
    assert view.message == (
        "gold at steps 60, 50, 40 and 3 more is nan: these evals are ignored, scores must be finite"
    )


EXPECTED = ', expected rlhf_eval_score{metric="win_rate",step="…"}'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("win_rate 0.5\n", "a series win_rate is there"),
        ('# TYPE x gauge\nx 1\neval_win_rate{split="test"} 0.5\n', "a series eval_win_rate is there"),
        (
            'rlhf_eval_score{name="win_rate",step="1"} 1\n',
            "rlhf_eval_score is there without the label metric",
        ),
        ("win_rate_total 5\nmy_win 3\n", ""),
        ("rlhf_step 3\nwin_rate 0.5\n", ""),  # a client's page: its evals are to come
        ('rlhf_eval_score{metric="other",step="1"} 1\nwin_rate 0.5\n', ""),  # its names are told
        ("", ""),
    ],
)
def test_a_metric_that_is_there_in_another_form_is_named(text: str, told: str) -> None:
    assert parse(text.encode(), "win_rate").misplaced == (f"{told}{EXPECTED}" if told else "")


def test_a_name_is_looked_for_as_prometheus_writes_it() -> None:
    found = parse(b"val_core_gsm8k_acc_mean_8 0.5\n", "val-core/gsm8k/acc/mean@8").misplaced
    assert found.startswith("a series val_core_gsm8k_acc_mean_8 is there")


# row 7
@pytest.mark.parametrize(
    ("number", "known"), [("0", 0), ("-3", None), ("12.5", None), ("NaN", None), ("64", 64)]
)
def test_an_eval_of_no_samples_is_named_and_an_impossible_number_is_unknown(
    number: str, known: int | None
) -> None:
    samples = f'rlhf_eval_samples{{metric="gold",step="20",attempt="{LIFE}"}} {number}\n'
    view = parse(page(score(10, 0.5), score(20, 0.0), samples), "gold")
    assert [p.samples for p in view.points] == [None, known]
    told = "gold at step 20 was measured on 0 samples: this eval is ignored" if known == 0 else ""
    assert view.message == told


@pytest.mark.parametrize("text", ["NaN", "-Inf", "1e999"])
def test_gauges_that_are_not_finite_are_absent(text: str) -> None:
    view = parse(page(f"rlhf_proxy_reward {text}\nrlhf_kl {text}\nrlhf_step {text}\n"), "gold")
    assert (view.proxy, view.kl, view.step) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "step"), [("24", 24), ("2.4e1", 24), ("24.5", None), ("-1", None), ("1e18", None)]
)
def test_a_step_is_a_whole_number(text: str, step: int | None) -> None:
    assert parse(page(f"rlhf_step {text}\n"), "gold").step == step


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE rlhf_evals counter\nrlhf_evals_total{} 5\n",
        "# TYPE rlhf_evals_total counter\nrlhf_evals_total 5\n",
        "# TYPE rlhf_evals counter\nrlhf_evals 5\n",
        "# TYPE rlhf_evals unknown\nrlhf_evals_total 5 1732186000000\n",
        "rlhf_evals_total 5\r\n",
    ],
)
def test_every_spelling_of_a_counter_is_read(text: str) -> None:
    assert parse(page(text), "gold").evals_total == 5


def test_a_gauge_declared_as_a_counter_keeps_its_name() -> None:
    assert parse(b"# TYPE rlhf_step counter\nrlhf_step 7\n", "gold").step == 7
    assert parse(b"# TYPE rlhf_step counter\nrlhf_step_total 7\n", "gold").step == 7


def test_duplicate_series_with_one_value_count_once() -> None:
    view = parse(page(score(1, 2), score(1, 2.0), "rlhf_kl 1\nrlhf_kl 1.0\n"), "gold")
    assert (len(view.points), view.kl, view.message) == (1, 1.0, "")


def test_duplicate_series_with_two_values_are_left_out_and_named() -> None:
    view = parse(page(score(1, 2), score(1, 3), score(1, 2), score(2, 4), "rlhf_kl 1\nrlhf_kl 2\n"), "gold")
    assert ([p.step for p in view.points], view.kl) == ([2], None)
    assert view.message == (
        "gold has two values for step 1, attempt 1-1732186000: this eval is ignored; "
        "rlhf_kl has several values for one attempt: ignored, expected one series"
    )


def test_series_that_another_label_parts_are_told_by_that_label() -> None:
    """Nothing told which two series there were, nor that each needs a metric of its own."""
    at = 'metric="gold",step="{}",attempt="1-1732186000"'
    rows = [
        f'rlhf_eval_score{{{at.format(step)},split="{split}"}} {score}'
        for step in (1, 2)
        for split, score in (("val", 0.5), ("test", 0.25))
    ]
    view = parse("\n".join(rows).encode() + b"\n", "gold")
    assert view.points == ()
    first, second = view.message.split("; ")
    assert first == (
        "gold has two values for step 1, attempt 1-1732186000 (split='val', split='test'): this eval is "
        "ignored"
    )
    assert "split" not in second, "told once: a page may be long"


def test_of_several_attempts_a_gauge_is_the_pages_own_else_the_last() -> None:
    body = b'rlhf_step{attempt="2-9"} 5\nrlhf_step{attempt="10-1"} 3\nrlhf_step{attempt="9-99"} 7\n'
    assert parse(body, "gold").step == 7
    view = parse(b'rlhf_run_info{uid="u-1",attempt="10-1"} 1\n' + body, "gold")
    assert (view.step, view.page) == (3, Page("u-1", Attempt(10, "1")))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ('{uid="",attempt="1-a"}', "has no uid"),
        ('{uid="u"}', "expected '<number>-<life>'"),
        ('{uid="u",attempt="1-A!"}', "expected '<number>-<life>'"),
    ],
)
def test_a_page_that_says_wrongly_whose_it_is_is_refused(labels: str, said: str) -> None:
    with pytest.raises(MetricsError, match=said):
        parse(f"rlhf_run_info{labels} 1\n".encode(), "gold")


def test_a_page_of_two_processes_is_refused() -> None:
    body = b'rlhf_run_info{uid="u",attempt="1-a"} 1\nrlhf_run_info{uid="u",attempt="1-b"} 1\n'
    with pytest.raises(MetricsError, match="several processes"):
        parse(body, "gold")


def test_samples_of_other_metrics_need_not_keep_the_contract() -> None:
    view = parse(page(score("x", 1, metric="other", attempt="?"), score(1, 2)), "gold")
    assert [p.step for p in view.points] == [1]


@pytest.mark.parametrize("value", ["-0.1", "NaN", "+Inf"])
def test_a_standard_error_that_cannot_be_one_is_absent(value: str) -> None:
    body = page(score(1, 2), f'rlhf_eval_score_stderr{{metric="gold",step="1",attempt="{LIFE}"}} {value}\n')
    assert parse(body, "gold").points == (EvalPoint(1, 2.0, Attempt(1, "1732186000")),)


@pytest.mark.parametrize(
    "body",
    [
        b"s3cr3t\n",
        b"up 1\ns3cr3t",
        b"\xff s3cr3t\n",
        b"rlhf_kl s3cr3t\n",
        b'rlhf_eval_score{metric="s3cr3t} 1\n',
        b"rlhf_kl " + b"s3cr3t" * 999 + b"\n",
        "rlhf_kl s3cr3t٣\n".encode(),
    ],
)
def test_what_cannot_be_used_is_not_quoted(body: bytes) -> None:
    """The page may be another's than the trainer's, and its first line was told in the status."""
    assert "s3cr3t" not in refused(body).message


NOT_PROMETHEUS = [
    pytest.param(b"\x89PNG\r\n\x1a\n\0\0", "not UTF-8", id="binary"),
    pytest.param(b"a 1\0\n", "NUL", id="nul bytes"),
    pytest.param(b"<!doctype html>\n<p>hello\n", "starts with HTML or XML;", id="html"),
    pytest.param(b'{"step": 1}\n', "starts with JSON;", id="json"),
    pytest.param(b"it works\n", "starts with a line that is no sample;", id="prose"),
    pytest.param(b"hello\n", "starts with a line that is no sample;", id="a word"),
    pytest.param(b"x" * 9000 + b"<p>\n", "starts with a line that is no sample;", id="one long line"),
    pytest.param(b"rlhf_step 1\nrlhf_kl 0.1", "the page is cut off", id="cut"),
    pytest.param(page(score(1, 2), "rlhf_kl\n"), "line of rlhf_kl cannot be read", id="no value"),
    pytest.param(page(score(1, 2), "rlhf_kl one\n"), "line of rlhf_kl cannot be read", id="value is a word"),
    pytest.param(
        page(score(1, 2), "rlhf_kl 1_0\n"), "line of rlhf_kl cannot be read", id="underscore in a value"
    ),
    pytest.param(page(score(1, 2), "rlhf_kl ٣\n"), "ASCII", id="digits of another script"),
    pytest.param(page(score(1, 1), score(2, "٣.٣")), "ASCII", id="score in digits of another script"),
    pytest.param(b'rlhf_eval_score{metric="gold} 1\n', "cannot be read", id="open quote"),
    pytest.param(b'rlhf_eval_score{metric="gold",metric="gold"} 1\n', "cannot be read", id="label twice"),
    pytest.param(
        b"up 1\nrlhf_kl 1 " + b"9" * 400 + b"\n", "cannot be read (OverflowError)", id="timestamp overflows"
    ),
]


NOT_BY_CONTRACT = [
    pytest.param(page(score("٣", 1)), "has step '٣'", id="step in digits of another script"),
    pytest.param(page(score("1.0", 1)), "has step '1.0': expected a whole number", id="step is a decimal"),
    pytest.param(page(score("-1", 1)), "has step '-1'", id="negative step"),
    pytest.param(page(score("9" * 16, 1)), "at most 15 digits", id="huge step"),
    pytest.param(page(score(1, 1, attempt="one")), "as in '1-9f2c41d0'", id="attempt is a word"),
    pytest.param(page(score(1, 1, attempt="9" * 40)), "at most 31", id="huge attempt"),
    pytest.param(b'rlhf_eval_score{metric="gold",step="1"} 1\n', "has no label attempt", id="no attempt"),
    pytest.param(b'rlhf_eval_score{metric="gold",attempt="1-1"} 1\n', "has step ''", id="no step"),
]


@pytest.mark.parametrize(
    ("body", "words", "outcome"),
    [
        *(pytest.param(*one.values, ScrapeOutcome.NOT_PROMETHEUS, id=one.id) for one in NOT_PROMETHEUS),
        *(pytest.param(*one.values, ScrapeOutcome.NOT_BY_CONTRACT, id=one.id) for one in NOT_BY_CONTRACT),
    ],
)
def test_what_is_not_the_contracts_text_is_refused_whole(
    body: bytes, words: str, outcome: ScrapeOutcome
) -> None:
    error = refused(body)
    assert error.outcome is outcome
    assert words in error.message
    assert "expected" in error.message


TOO_LARGE = [
    pytest.param(b"a 1\n" * 300_000, "1200000 bytes, at most 1048576 bytes", id="bytes"),
    pytest.param(b"rlhf_kl 1\n" * 5000, "more than 4096 lines", id="lines of ours"),
    pytest.param(page(score(1, 1, metric="m" * 300)), "value of label 'metric' too long: 300", id="label"),
    pytest.param(b'rlhf_kl{a="' + b"x" * 5_000 + b'"} 1\n', "5015 bytes, at most 2048", id="line"),
    pytest.param(
        (b'rlhf_kl{a="' + b"x" * 200 + b'"} 1\n') * 2000, "at most 4096 lines, 262144 bytes", id="sum"
    ),
]


@pytest.mark.parametrize(("body", "words"), TOO_LARGE)
def test_what_is_over_a_cap_is_refused_with_the_cap(body: bytes, words: str) -> None:
    error = refused(body)
    assert error.outcome is ScrapeOutcome.TOO_LARGE
    assert words in error.message


def test_messages_stay_short_and_on_one_line() -> None:
    for body in (
        b"\x1b[2J" + b"x" * 100_000 + b"\n",
        page(score("9" * 200, 1)),
        b"rlhf_kl " + b"z" * 2000 + b"\n",
    ):
        message = refused(body).message
        assert len(message) < 400
        assert message.isprintable()


def test_thousands_of_foreign_series_cost_little() -> None:
    foreign = b"".join(b'vllm_tokens_total{model="m",rank="%d"} 1.5\n' % i for i in range(20_000))
    body = foreign + page(*(score(s, s) for s in range(32)))
    begin = time.process_time()
    assert len(parse(body, "gold").points) == 32
    assert time.process_time() - begin < 0.25  # about 0.01 s here; parsing every line takes about 0.4 s


def test_the_known_names_are_all_read() -> None:
    """A metric added to controller/names.py must be read here, or be left out on purpose."""
    contract = {v for k, v in vars(names).items() if k.startswith("METRIC_") and k != "METRIC_PREFIX"}
    # Phases are for people and `evalstop sim sharing advise`: nothing is decided by them.
    for name in contract - {names.METRIC_PHASE_SECONDS, names.METRIC_STEP_SECONDS}:
        assert "cannot be read" in refused(f"up 1\n{name} x\n".encode()).message


_label = st.text(max_size=12)
_line = st.one_of(
    st.text(max_size=60),
    st.builds(
        lambda name, labels, value: f"{name}{{{labels}}} {value}",
        st.sampled_from(
            ["rlhf_eval_score", "rlhf_kl", "rlhf_step", "rlhf_evals_total", "rlhf_evaluator_info"]
        ),
        st.lists(
            st.builds(
                lambda k, v: f'{k}="{v}"',
                st.sampled_from(["metric", "step", "attempt", "version", "é", "__name__"]),
                _label,
            ),
            max_size=4,
        ).map(",".join),
        st.one_of(st.text(max_size=10), st.floats().map(str), st.integers().map(str)),
    ),
    st.builds(score, st.integers(-1, 5), st.floats(), st.just("gold"), st.sampled_from(["0", "1-2", "x"])),
)


@settings(max_examples=400)
@given(
    st.one_of(
        st.binary(max_size=300), st.lists(_line, max_size=6).map(lambda ls: ("\n".join(ls) + "\n").encode())
    )
)
def test_any_bytes_give_a_view_or_the_parsers_own_error(body: bytes) -> None:
    error: MetricsError | None = None
    try:
        view = parse(body, "gold")
    except MetricsError as caught:
        error = caught
    if error is not None:
        assert error.outcome in (
            ScrapeOutcome.TOO_LARGE,
            ScrapeOutcome.NOT_PROMETHEUS,
            ScrapeOutcome.NOT_BY_CONTRACT,
        )
        assert error.message.isprintable()
        return
    assert view.outcome is ScrapeOutcome.OK
    assert len({(p.attempt, p.step) for p in view.points}) == len(view.points)
    for count in (view.step, view.evals_total, view.request_served):
        assert count is None or count >= 0
    for value in (view.proxy, view.kl):
        assert value is None or math.isfinite(value)


@settings(max_examples=200)
@given(st.dictionaries(st.integers(0, 10**12), st.floats(allow_nan=False, allow_infinity=False), max_size=32))
def test_what_is_written_is_what_is_read(evals: dict[int, float]) -> None:
    body = page(*(score(step, repr(value)) for step, value in evals.items()))
    assert {p.step: p.score for p in parse(body, "gold").points} == evals
    cut = body.rstrip(b"\n")
    if cut:
        assert refused(cut).outcome is ScrapeOutcome.NOT_PROMETHEUS


_steps = st.lists(st.integers(1, 9), max_size=4, unique=True)


@settings(max_examples=200)
@given(_steps, _steps, st.integers(0, 50), st.integers(0, 50))
def test_a_page_read_with_the_last_one_in_mind_says_what_it_says_alone(
    before: list[int], after: list[int], step: int, later: int
) -> None:
    first = page(f"rlhf_step {step}\n", *(score(s, s / 7) for s in before), score(5, 0.1, metric="other"))
    second = page(*(score(s, s / 7) for s in after), f"rlhf_step {later}\n", score(5, 0.1, metric="other"))
    _, known = read(first, "gold", others=("other",))
    view, _ = read(second, "gold", others=("other",), known=known)
    assert view == parse(second, "gold", others=("other",))
    assert view.step == later


def test_an_eval_that_cannot_be_read_is_refused_whatever_the_last_page_was() -> None:
    _, known = read(page(score(1, 0.5)), "gold")
    with pytest.raises(MetricsError, match="cannot be read"):
        read(page(score(1, 0.5), score(2, "bad")), "gold", known=known)
    # Only the other lines changed, and they are read anew.
    with pytest.raises(MetricsError, match="cannot be read"):
        read(page(score(1, 0.5), "rlhf_step bad\n"), "gold", known=known)


def scored_by(version: str, step: int, value: float, metric: str = "gold") -> str:
    return score(step, value, metric).replace("} ", f',evaluator="{version}"}} ')


def by(version: str) -> str:
    return f'rlhf_evaluator_info{{version="{version}"}} 1\n'


def test_evals_of_another_evaluator_than_the_page_s_are_left_out() -> None:
    """It changed while nobody read: on the first page that is read are evals of both."""
    evals = (scored_by("1", 10, 5.0), scored_by("2", 20, 0.1), scored_by("2", 30, 0.2))
    beside = (scored_by("1", 10, 9.0, "safety"), scored_by("2", 20, 1.0, "safety"))
    view, known = read(page(*evals, *beside, by("2")), "gold", others=("safety",))
    assert [p.step for p in view.points] == [20, 30]
    assert [p.step for p in view.others[0].points] == [20]
    assert view.evaluator == "2"
    # Set before the first eval under it: the same lines, and none of them can be compared with what comes.
    changed, _ = read(page(*evals, *beside, by("3")), "gold", others=("safety",), known=known)
    assert (changed.points, changed.others, changed.evaluator) == ((), (), "3")
    assert changed.metrics_seen == ("gold", "safety")


def test_scores_that_name_no_evaluator_count_as_the_page_s() -> None:
    assert [p.step for p in parse(page(score(10, 0.1), scored_by("2", 20, 0.2), by("2")), "gold").points] == [
        10,
        20,
    ]
    assert [p.step for p in parse(page(scored_by("1", 10, 0.1), scored_by("2", 20, 0.2)), "gold").points] == [
        10,
        20,
    ]
