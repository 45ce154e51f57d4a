"""What stays on one side of a split: captures that recorded the same conversation, and no more than these."""

from conftest import FAST, rows, save

from fenxi_train import groups, table

COLUMNS = ["capture", "first_us", "community_id", "data_lengths"]


def captures(tmp_path, content):
    """The group of each row of (capture, start in seconds, Community ID, lengths)."""
    made = [dict(zip(COLUMNS, (capture, int(start * 1e6), flow, lengths))) for capture, start, flow, lengths in content]
    return groups.of(table.read_all([save(tmp_path / "t.csv", made, COLUMNS)]), "capture").tolist()


def test_a_device_that_repeats_its_ports_does_not_join_its_captures(tmp_path):
    content = [("a", 0, "ntp", "76 -76"), ("b", 3600, "ntp", "76 -76"), ("c", 7200, "ntp", "76 -76")]
    assert captures(tmp_path, content) == ["a", "b", "c"]


def test_a_conversation_captured_twice_joins_its_captures(tmp_path):
    content = [("router", 10, "x", "100 -200"), ("far", 0, "y", "60"), ("switch", 10.4, "x", "100 -200"), ("far", 10.2, "x", "100 -201")]
    found = captures(tmp_path, content)
    assert found[0] == found[2] and found[1] == found[3] == "far"


def labelled_once(tmp_path):
    """Two labels in many captures, one in a single capture."""
    content = [{**r, "capture": "c1"} if r["label"] == "mail" else r for r in rows(120)]
    return save(tmp_path / "t.csv", content)


def test_a_label_that_lies_in_one_group_is_refused_with_its_cures(fenxi_train, tmp_path):
    table = labelled_once(tmp_path)
    fit = lambda *more: fenxi_train("fit", table, "--out", tmp_path / f"b{len(more)}", "--k", "3", *FAST, *more)
    code, _, err = fit()
    assert code == 65 and "all flows of a label belong to one capture" in err and ": mail (c1); add flows from another capture" in err
    assert "(--classes names,web)" in err and not (tmp_path / "b0").exists()
    assert fit("--classes", "web,names")[0] == 0
    assert fit("--classes", "web,names,mail", "--seed", "2", "--no-ports")[0] == 0  # who names a label wants it
    code, _, err = fit("--split-by", "flow", "--hosts")
    assert code == 0, err
    card = (tmp_path / "b3/CARD.md").read_text()
    assert "Flows were held out at random" in card and "Temperatures per depth: 1.00" in card


def test_a_second_split_leaves_out_what_it_cannot_score(fenxi_train, tmp_path):
    content = [{**r, "source": "one" if r["label"] == "mail" or i % 2 else "two"} for i, r in enumerate(rows(120))]
    table = save(tmp_path / "t.csv", content, [*content[0]])
    code, _, err = fenxi_train("fit", table, "--out", tmp_path / "b", "--k", "3", "--also-split-by", "source", *FAST)
    assert code == 0 and "not scored by source, because all its flows lie in one: mail" in err


def test_days_of_a_label_are_held_out_and_captures_of_its_only_day(fenxi_train, tmp_path):
    day = 86_400_000_000
    content = [{"capture": c, "first_us": d * day} for c, d in zip("aabbc", (1, 1, 2, 2, 2))]
    read = table.read_all([save(tmp_path / "t.csv", content, ["capture", "first_us"])])
    found = groups.of(read, "label-day", ["lamp", "plug", "lamp", "plug", "kettle"])
    first, second = "1970-01-02", "1970-01-03"
    days = [f"{label} {day}" for day in (first, second) for label in ("lamp", "plug")]
    assert found.tolist() == [*days, "kettle c"]
    options = ("--out", tmp_path / "b", "--k", "3", "--split-by", "label-day", *FAST)
    code, _, err = fenxi_train("fit", save(tmp_path / "flows.csv", rows(120)), *options)
    assert code == 0, err
    assert "held out by label-day" in (tmp_path / "b/CARD.md").read_text()


def test_seeds_are_compared_and_foreign_flows_counted(tmp_path, capsys):
    import seeds

    own = save(tmp_path / "own.csv", rows(60))
    foreign = save(tmp_path / "foreign.csv", rows(60, seed=2))
    options = ("--model", "forest", "--trees", "3", "--k", "3", "--min-flows", "5", "--folds", "3")
    seeds.main("3", "1,2", own, "--foreign", foreign, *options)
    lines = capsys.readouterr().out.splitlines()
    named = [f"seed {seed}, {what}" for seed in (1, 2) for what in ("all", "own", "foreign")]
    assert [line.split(":")[0] for line in lines] == named
    assert "60 flows, answer" in lines[0] and "60 flows, named" in lines[2]
