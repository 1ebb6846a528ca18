"""Logs of language models as Views."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal import read_views
from recal.answers import read_log
from recal.answers.logs import open_log
from recal.answers.scores import answer_row, answer_rows, begun_by
from recal.errors import FileError, InputError, RecalError


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def harness_line(number, scores, target, **more):
    options = [{"arg_0": f"question {number}", "arg_1": f" {name}"} for name in "ABCD"]
    arguments = {f"gen_args_{place}": options[place] for place in range(len(scores))}
    line = {"doc_hash": f"hash{number}", "target": target, "arguments": arguments}
    line["resps"] = [[[str(score), "False"]] for score in scores]
    return {**line, "filtered_resps": [[str(score), "False"] for score in scores], **more}


def token(text, top):
    likeliest = [{"token": name, "logprob": value} for name, value in top.items()]
    return {"token": text, "logprob": top.get(text, -0.1), "top_logprobs": likeliest}


def completion(*tokens, **more):
    choice = {"message": {"content": "A"}, "logprobs": {"content": list(tokens)}}
    return {"id": "chatcmpl-1", "choices": [choice], **more}


def test_samples_of_the_harness_are_read_whatever_form_scores_and_targets_have(tmp_path):
    scores = [-3.0, -2.0, -1.0]
    lines = [
        harness_line(0, [-1.0, -2.0, -3.0], "0"),
        harness_line(1, [-3.0, -0.5, -1.0], "B"),
        harness_line(2, scores, [2], filtered_resps=scores),
        harness_line(3, scores, 2, filtered_resps=[[score, False] for score in scores]),
        harness_line(4, scores, 1, filtered_resps=["generated"]),  # `resps` has the scores
    ]
    views = read_log(write_lines(tmp_path / "samples.jsonl", lines))
    assert views.classes.tolist() == ["A", "B", "C"]
    assert views.labels.tolist() == [0, 1, 2, 2, 1]
    np.testing.assert_allclose(views.logits[1], [-3.0, -0.5, -1.0])
    np.testing.assert_allclose(views.logits[4], [-3.0, -2.0, -1.0])


def test_scores_per_character_are_those_of_acc_norm_and_are_named(tmp_path):
    arguments = [["q", " no"], ["q", " perhaps"], ["", " no"], ["", " perhaps"]]
    line = harness_line(0, [-2.0, -3.5, -9.0, -1.0], 1, arguments=arguments)
    log = write_lines(tmp_path / "samples.jsonl", [line])
    # Requests without a question serve acc_mutual_info.
    assert read_log(log).logits.tolist() == [[-2.0, -3.5]]
    joined = open_log(log, {}, scores="acc_norm")
    assert joined.views.logits.tolist() == [[-1.0, -0.5]]
    assert joined.views.preprocessing.asked == (("scores", "acc_norm"),)
    assert "acc_norm" in str(joined)
    same = [["option 1", " wins"], ["option 2", " wins"]]  # the contexts differ
    log = write_lines(tmp_path / "same.jsonl", [harness_line(0, [-2.0, -3.0], 1, arguments=same)])
    assert read_log(log, scores="acc_norm").logits.tolist() == [[-0.5, -0.75]]
    log = write_lines(tmp_path / "none.jsonl", [harness_line(0, [-2.0, -3.0], 1, arguments=None)])
    with pytest.raises(InputError, match="no texts of the options"):
        read_log(log, scores="acc_norm")
    log = write_lines(tmp_path / "chat.jsonl", [completion(token("A", {"A": -0.1}))])
    with pytest.raises(InputError, match="no samples of lm-evaluation-harness"):
        read_log(log, options=["A", "B"], scores="acc_norm")


def test_runs_are_joined_by_doc_hash_and_questions_in_one_file_only_are_left_out(tmp_path):
    lines = [harness_line(n, [-1.0, -2.0 - n], 0) for n in (0, 1, 2, 2)]
    main = write_lines(tmp_path / "a.jsonl", lines)
    lines = [harness_line(n, [-5.0, -1.0 * n], 0) for n in (2, 1, 2)]
    other = write_lines(tmp_path / "b.jsonl", lines)
    joined = open_log(main, {"direct": other})
    assert joined.n_left_out == 1
    assert joined.views.logits[:, 1].tolist() == [-3.0, -4.0, -4.0]
    assert joined.views.transformed("direct")[:, 1].tolist() == [-1.0, -2.0, -2.0]
    wrong = write_lines(tmp_path / "c.jsonl", [harness_line(n, [-5.0, -1.0], 1) for n in (0, 1, 2)])
    with pytest.raises(InputError, match="other labels than the first file for 3 questions"):
        read_log(main, views={"direct": wrong})
    stranger = write_lines(tmp_path / "d.jsonl", [harness_line(9, [-5.0, -1.0], 0)])
    with pytest.raises(InputError, match=r"no question in common.*'hash0'.*'hash9'"):
        read_log(main, views={"direct": stranger})


def test_batch_output_is_joined_with_labels_by_custom_id(tmp_path):
    answers = {"q1": {"A": -0.1, " B": -3.0, "B": -4.0}, "q2": {"B": -0.2, "The": -2.0}}
    lines = []
    for one, top in answers.items():
        body = completion(token(next(iter(top)), top))
        lines.append({"custom_id": one, "response": {"status_code": 200, "body": body}})
    lines.append({"custom_id": "q3", "response": None, "error": {"code": "content_filter"}})
    log = write_lines(tmp_path / "batch.jsonl", lines)
    labels = tmp_path / "labels.csv"
    labels.write_text("custom_id,label\nq3,B\nq2,B\nq1,A\n")
    joined = open_log(log, {}, ["A", "B"], labels)
    assert joined.views.labels.tolist() == [0, 1, 1]  # by id: in order they would be B, B, A
    np.testing.assert_allclose(joined.views.logits[0], [-0.1, np.logaddexp(-3.0, -4.0)])
    assert joined.floor == 1e-5
    assert joined.views.logits[1].tolist() == [np.log(1e-5), -0.2]
    assert joined.views.logits[2, 0] == joined.views.logits[2, 1]
    assert (joined.n_missing, joined.n_cells, joined.n_unanswered) == (3, 6, 1)
    assert "3 of 6 option scores" in str(joined)
    labels.write_text("custom_id,label\nq3,A\nq2,B\nq1,A\nq1,B\n")
    with pytest.raises(InputError, match="different labels of the question 'q1'"):
        open_log(log, {}, ["A", "B"], labels)
    labels.write_text("custom_id,label\nq3,A\nq2,B\n")
    with pytest.raises(InputError, match=r"labels lack 1 of 3 questions.*'q1'"):
        open_log(log, {}, ["A", "B"], labels)


@pytest.mark.parametrize(
    "failure",
    [
        {"response": None, "error": {"code": "batch_expired"}},
        {"response": {"status_code": 500, "body": {"error": {"message": "oops"}}}, "error": None},
    ],
)
def test_failed_lines_of_a_batch_are_left_out_and_are_no_refusals(tmp_path, failure):
    body = completion(token("A", {"A": -0.1, "B": -3.0}))
    lines = [{"custom_id": "q1", "response": {"status_code": 200, "body": body}}]
    log = write_lines(tmp_path / "batch.jsonl", [*lines, {"custom_id": "q2", **failure}])
    joined = open_log(log, {}, ["A", "B"])
    assert (joined.views.n_samples, joined.n_unanswered, joined.n_left_out) == (1, 0, 1)


def test_files_are_joined_by_exact_ids_or_not_at_all(tmp_path):
    (tmp_path / "ids.csv").write_text("id,x,y\n007,0.7,0.3\n7,0.2,0.8\n")
    (tmp_path / "turned.csv").write_text("id,x,y\n7,0.2,0.8\n007,0.7,0.3\n")
    (tmp_path / "none.csv").write_text("x,y\n0.7,0.3\n0.2,0.8\n")
    (tmp_path / "labels.csv").write_text("label\nx\ny\n")
    views = read_log(tmp_path / "ids.csv", views={"other": tmp_path / "turned.csv"})
    np.testing.assert_allclose(views.transformed("other"), views.logits)
    for one, other, lacking in [
        ("ids", "none", "other"),
        ("none", "ids", "first"),
        ("none", "none", "first"),
    ]:
        with pytest.raises(InputError, match=f"{lacking}.* has no ids"):
            read_log(tmp_path / f"{one}.csv", views={"other": tmp_path / f"{other}.csv"})
    with pytest.raises(InputError, match=r"labels\.csv has no ids"):
        read_log(tmp_path / "ids.csv", labels=tmp_path / "labels.csv")


def test_the_floor_is_half_of_the_smallest_returned_probability_if_that_is_smaller(tmp_path):
    tops = {"A": -0.1, "B": -20.0}, {"A": -0.1}
    log = write_lines(tmp_path / "log.jsonl", [completion(token("A", top)) for top in tops])
    assert open_log(log, {}, ["A", "B"]).floor == pytest.approx(np.exp(-20.0) / 2)


def test_the_answer_is_the_last_token_that_names_an_option():
    reasoned = [("A", {"A": -0.5}), (" train", {" train": -0.1})]
    reasoned += [(" B", {" B": -0.2, " A": -2.0}), (".", {".": 0.0})]
    row, named = answer_row(reasoned, ["A", "B"])
    np.testing.assert_allclose(row, [-2.0, -0.2])
    assert named == 1
    refusal = [("I", {"I": -0.1, "B": -5.0}), (" cannot", {" cannot": 0.0})]
    row, named = answer_row(refusal, ["A", "B"])
    assert np.isnan(row[0])
    assert (row[1], named) == (-5.0, None)
    assert np.isnan(answer_row([], ["A", "B"])[0]).all()
    assert np.isnan(answer_rows([[("A", {"A": np.nan})]], ["A", "B"])[0]).all()
    found = [begun_by(text, ["yes", "no"]) for text in ("Yes", " no.", "y", "maybe", "")]
    assert found == [[0], [1], [0], [], []]
    assert begun_by("a", ["A", "a"]) == [1]
    assert answer_row([("y", {"y": -0.1, "n": -2.0})], ["yes", "no"])[1] == 0
    assert answer_row([("B", {"B": -0.1}), ("ecause", {"ecause": 0.0})], ["A", "B"])[1] is None


REQUESTS = ["refund request", "refund status", "Shipping"]


@pytest.mark.parametrize(("first", "second"), [("refund", " request"), ("Refund", "Ġrequest")])
def test_options_with_the_same_first_token_are_told_apart_by_the_next(first, second):
    shared = [
        (first, {first: np.log(0.7), "Ship": np.log(0.2)}),
        (second, {second: np.log(0.9), " status": np.log(0.1)}),
    ]
    row, named = answer_row(shared, REQUESTS)
    np.testing.assert_allclose(np.exp(row), [0.63, 0.07, 0.2])
    assert named == 0
    # A beginning that was not followed counts for all options that begin so.
    row, named = answer_row([("Shipping", {"Shipping": -0.5, "refund": np.log(0.3)})], REQUESTS)
    np.testing.assert_allclose(np.exp(row), [0.15, 0.15, np.exp(-0.5)])
    with pytest.raises(InputError, match=r"'refund' is the beginning of 2 options"):
        answer_row([("refund", {"refund": -0.1, "Ship": -2.0})], REQUESTS)


def test_texts_that_name_another_option_than_the_likeliest_are_counted(tmp_path):
    lines = []
    for share in (0.55, 0.9):
        second = {" request": np.log(share), " status": np.log(1.0 - share)}
        first = {"refund": np.log(0.6), "Shipping": np.log(0.4)}
        lines.append(completion(token("refund", first), token(" request", second)))
    joined = open_log(write_lines(tmp_path / "log.jsonl", lines), {}, REQUESTS)
    assert joined.views.logits.argmax(axis=1).tolist() == [2, 0]  # 0.33 and 0.54 against 0.4
    assert joined.n_other == 1
    assert "1 texts name another option" in str(joined)


def test_an_option_may_begin_another():
    top = {" request": np.log(0.8), ".": np.log(0.2)}
    options = ["refund", "refund request"]
    longer = [("refund", {"refund": 0.0}), (" request", top)]
    np.testing.assert_allclose(np.exp(answer_row(longer, options)[0]), [0.2, 0.8])
    assert answer_row([("refund", {"refund": -0.1})], options)[1] == 0


@pytest.mark.parametrize("kind", ["probabilities", "logarithms", "logits"])
def test_tables_with_one_column_per_option(tmp_path, kind):
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    logits = np.log(probs) + np.array([[5.0], [-1.0]])
    values = {"probabilities": probs, "logarithms": np.log(probs), "logits": logits}[kind]
    path = tmp_path / "options.csv"
    rows = [",".join(map(repr, row.tolist())) for row in values]
    path.write_text(f"id,A,B,C,label\n0,{rows[0]},A\n1,{rows[1]},C\n")
    views = read_log(path)
    np.testing.assert_allclose(views.logits, np.log(probs))
    assert views.labels.tolist() == [0, 2]
    again = read_views(views.write(tmp_path / "views.npz"))
    assert again.classes.tolist() == ["A", "B", "C"]


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path):
    plain = {"id": "1", "choices": [{"message": {"content": "A"}}]}
    answer = {"status_code": 500, "body": completion(token("A", {}))}
    failed = {"custom_id": "q", "response": answer}
    for line, options, message in [
        ({"resps": [["It is 42"]], "target": "42"}, None, "line 1 holds generated text"),
        (plain, ["A", "B"], "holds no logprobs"),
        (plain, None, "--options A,B,C,D"),
        (failed, ["A", "B"], "every request failed"),
        ({"question": "?", "text": "A"}, None, "its first line has question, text"),
        (harness_line(0, [-1.0, -2.0], "neither"), None, "'neither'"),
    ]:
        with pytest.raises(RecalError, match=message):
            read_log(write_lines(tmp_path / "log.jsonl", [line]), options=options)
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(FileError, match="line 2 is not JSON"):
        read_log(tmp_path / "bad.jsonl")


def test_chat_completions_are_joined_by_the_question_and_not_by_the_response(tmp_path):
    first = completion(token("A", {"A": -0.1}), question_id="q1")
    second = completion(token("B", {"B": -0.1}), question_id="q2")
    log = write_lines(tmp_path / "a.jsonl", [{**first, "id": "r1"}, {**second, "id": "r2"}])
    turned = write_lines(tmp_path / "b.jsonl", [{**second, "id": "r1"}, {**first, "id": "r2"}])
    views = read_log(log, views={"again": turned}, options=["A", "B"])
    np.testing.assert_array_equal(views.transformed("again"), views.logits)


def test_a_view_may_have_another_order_of_the_options_but_no_other_number(tmp_path):
    main = write_lines(tmp_path / "a.jsonl", [harness_line(n, [-1, -2, -3], 0) for n in range(2)])
    refused = completion(token("I", {"I": -0.1, "A": -2.0, "B": -3.0}), doc_hash="hash0")
    given = completion(token("A", {"A": -0.1, "B": -3.0}), doc_hash="hash1")
    log = write_lines(tmp_path / "b.jsonl", [refused, given])
    joined = open_log(main, {"again": log}, ["C", "B", "A"])
    assert joined.views.transformed("again").argmax(axis=1).tolist() == [0, 0]
    narrow = write_lines(tmp_path / "n.jsonl", [harness_line(0, [-1.0, -2.0], 0)])
    wide = [harness_line(n, [-1.0, -2.0, -3.0], 0, arguments=None) for n in range(1)]
    with pytest.raises(InputError, match="3 options per question"):
        read_log(narrow, views={"wide": write_lines(tmp_path / "w.jsonl", wide)})


def test_a_probability_of_0_in_a_table_is_a_missing_score(tmp_path):
    (tmp_path / "options.csv").write_text("A,B,C\n0,0.05,0.95\n0.2,0.8,0\n")
    joined = open_log(tmp_path / "options.csv", {})
    assert joined.n_missing == 2
    np.testing.assert_allclose(np.exp(joined.views.logits[0]), [1e-5, 0.05, 0.95])
