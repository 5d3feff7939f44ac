"""Formats, bad rows, the remap and the split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perf import movielens
from perf.datasets import DatasetError
from perf.movielens import History, Split, leave_last_out

CSV = """userId,movieId,rating,timestamp
7,100,4.0,30
7,9,0.5,10
7,20,3.5,30
8,9,5.0,5
"""
INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
    f"{line}\n" for line in ("7\t100\t4\t30", "7\t9\t0.5\t10", "7\t20\t3.5\t30", "8\t9\t5\t5")
)


def write(folder: Path, name: str, text: str, encoding: str = "utf-8") -> Path:
    (folder / name).write_text(text, encoding=encoding)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text"),
    [("ratings.csv", CSV), ("ml-100k.inter", INTER), ("u.data", INTER.partition("\n")[2]), ("other.txt", INTER)],
)
def test_every_format_gives_the_same_histories(tmp_path: Path, name: str, text: str) -> None:
    data = movielens.load(write(tmp_path, name, text))
    assert [history.user for history in data.histories] == ["7", "8"]
    assert data.item_ids == ("", "9", "20", "100"), "by number, not by spelling or by first appearance"
    first = data.histories[0]
    assert first.items.tolist() == [1, 3, 2], "time order; the tie at 30 keeps the file's order"
    assert first.actions.tolist() == [1, 4, 4], "half stars are rounded up"
    assert first.timestamps.tolist() == [10, 30, 30]
    assert (data.items, data.interactions, len(data.bad_rows)) == (4, 4, 0)
    assert (first.items.dtype, first.actions.dtype) == (np.int64, np.int32), "what the protocol sends"


def test_the_remap_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    header, *rows = CSV.splitlines()
    backwards = movielens.load(write(tmp_path, "ratings.csv", "\n".join([header, *reversed(rows)])))
    assert backwards.item_ids == ("", "9", "20", "100")


def test_columns_may_stand_in_any_order_and_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    data = movielens.load(write(tmp_path, "ratings.csv", "\ufefftimestamp,rating,movieId,userId\n5,3,9,8\n"))
    assert data.histories[0].user == "8"
    assert data.histories[0].actions.tolist() == [3]


def test_identifiers_that_are_no_numbers_come_last(tmp_path: Path) -> None:
    rows = "".join(f"1,{item},3,5\n" for item in ("b", "10", "a", "9"))
    data = movielens.load(write(tmp_path, "ratings.csv", CSV.splitlines()[0] + "\n" + rows))
    assert data.item_ids == ("", "9", "10", "a", "b")


def test_bad_rows_are_counted_and_named(tmp_path: Path) -> None:
    bad = ["1,2,3", "1,2,six,5", "1,2,nan,5", "1,2,5.5,5", "1,2,0,5", "1,2,3,later", "1,2,3,-1", "1,2,3,inf", ",2,3,5"]
    data = movielens.load(write(tmp_path, "ratings.csv", CSV + "\n" + "\n".join(bad) + "\n"))
    assert data.interactions == 4
    assert data.bad_rows.counts == {
        "the wrong number of columns": 1,
        "a rating outside 0.5 .. 5": 4,
        "a bad timestamp": 3,
        "no user or item": 1,
    }
    assert str(data.bad_rows).startswith("9 rows left out (4 with a rating outside 0.5 .. 5, 3 with a bad timestamp")
    assert "line 7: the wrong number of columns" in str(data.bad_rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a MovieLens ratings file"),
        ("hello\nworld\n", "should be"),
        (CSV.splitlines()[0], "no usable rating"),
    ],
)
def test_what_is_no_ratings_file_is_an_error_that_says_so(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        movielens.load(write(tmp_path, "ratings.csv", text))


def test_a_missing_file_or_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"there is no file or folder .*nowhere"):
        movielens.load(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match=r"holds none of .*ml-100k\.inter"):
        movielens.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "encoding", "title"),
    [
        ("movies.csv", 'movieId,title,genres\n9,"Misérables, Les (1995)",Drama\n', "utf-8", "Misérables, Les (1995)"),
        (
            "ml-100k.item",
            "item_id:token\tmovie_title:token_seq\trelease_year:token\n9\tHeat\t1995\n",
            "utf-8",
            "Heat (1995)",
        ),
        ("u.item", "9|Misérables, Les (1995)|01-Jan-1995||\n", "latin-1", "Misérables, Les (1995)"),
    ],
)
def test_titles_come_from_the_list_beside_the_ratings(
    tmp_path: Path, name: str, text: str, encoding: str, title: str
) -> None:
    write(tmp_path, "ratings.csv", CSV)
    write(tmp_path, name, text, encoding)
    data = movielens.load(tmp_path)
    assert data.title(1) == title
    assert data.title(2) == "item 20", "an item without a title is called by its own ID"


def test_leave_last_out() -> None:
    numbers = np.arange(5)
    history = History("u", numbers, numbers.astype(np.int32), numbers)
    assert leave_last_out(history) == Split(slice(0, 3), 3, 4)
    short = History("u", numbers[:2], numbers[:2].astype(np.int32), numbers[:2])
    assert leave_last_out(short) is None
