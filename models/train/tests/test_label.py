"""series and label: records to tables, and names by every way."""

import csv
import gzip
import json

import pytest
from conftest import rows, save

from fenxi_train import label
from fenxi_train.flowid import community_id

RECORD = {
    "type": "flow", "flow_id": 3, "community_id": "1:wtX+aZZ8ISsL+svDMUjqREKT1M0=", "src": "192.168.5.44",
    "src_port": 59571, "dst": "224.0.0.252", "dst_port": 5355, "proto": 17, "first": "2016-08-01T21:06:13.025824Z",
    "midstream": False, "packets_fwd": 1, "packets_rev": 0, "bytes_fwd": 54, "bytes_rev": 0, "series": [54],
    "series_us": [0], "series_payload": [26], "series_inter_arrival_us": [0], "series_tcp_flags": [0],
}


def read(path):
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def test_community_id_of_both_directions():
    assert community_id(17, "192.168.5.44", 59571, "224.0.0.252", 5355) == RECORD["community_id"]
    assert community_id(17, "224.0.0.252", 5355, "192.168.5.44", 59571) == RECORD["community_id"]


def test_records_of_one_flow_add_up(fenxi_train, tmp_path):
    more = {**RECORD, "series": [54, 54], "series_us": [0, 9], "series_payload": [26, 26], "series_inter_arrival_us": [0, 9], "series_tcp_flags": [0, 0]}
    lines = [json.dumps(r) for r in (RECORD, {"type": "label", "flow_id": 3}, more)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines) + "\n")
    code, _, err = fenxi_train("series", tmp_path / "r.jsonl", "--out", tmp_path / "t.csv.gz")
    assert code == 0, err
    (row,) = read(tmp_path / "t.csv.gz")
    assert (row["packets"], row["data_lengths"], row["data_offsets_us"], row["first_us"]) == ("2", "54 54", "0 9", "1470085573025824")
    assert fenxi_train("series", tmp_path / "r.jsonl", "--out", tmp_path / "t.csv.gz")[0] == 73


def record(flow, minute, series=(54,), **more):
    """A flow record as a live service writes it."""
    lists = {"series": list(series), "series_us": list(range(len(series))), "series_payload": [26] * len(series)}
    return {**RECORD, "flow_id": flow, "first": f"2016-08-01T21:{minute:02}:00.000000Z", **lists, **more}


def test_rotated_records_of_a_service_are_one_capture(fenxi_train, tmp_path):
    site, other = tmp_path / "a", tmp_path / "b"
    site.mkdir(), other.mkdir()
    unchosen = {k: v for k, v in record(9, 1).items() if not k.startswith("series")}
    # Flow 2 is long: its first record is in the older file, its longer series in the newer one.
    older, newer = [record(1, 1), record(2, 2), unchosen], [record(2, 2, (54, -60)), record(1, 30)]
    lines = lambda records: "".join(json.dumps(r) + "\n" for r in records)
    (site / "r.jsonl").write_text(lines(newer) + '{"type":"flow","flow_')  # the service is still writing
    with gzip.open(site / "r.jsonl.2.gz", "wt") as file:
        file.write(lines(older))
    (other / "r.jsonl-20261126").write_text(lines(older[:1]))
    files = (site / "r.jsonl", site / "r.jsonl.2.gz", other / "r.jsonl-20261126")
    code, out, err = fenxi_train("series", *files, "--out", tmp_path / "t.csv.gz")
    assert code == 0 and "4 flows of 3 files" in out, err
    found = read(tmp_path / "t.csv.gz")
    assert [(r["capture"], r["flow"], r["data_lengths"], r["packets"]) for r in found] == [
        (str(site / "r.jsonl"), "2", "54 -60", "2"),
        (str(site / "r.jsonl"), "1", "54", "1"),
        (str(site / "r.jsonl"), "1", "54", "1"),  # after a restart flows are numbered again
        (str(other / "r.jsonl"), "1", "54", "1"),
    ]
    code, _, err = fenxi_train("series", site / "r.jsonl", site / "../a/r.jsonl", "--out", tmp_path / "u.csv.gz")
    assert code == 64 and "the same file as" in err


def test_the_unit_of_a_series_is_that_of_its_record(fenxi_train, tmp_path):
    (tmp_path / "r.jsonl").write_text(json.dumps(record(1, 1, series_unit="packet")) + "\n")
    code, _, err = fenxi_train("series", tmp_path / "r.jsonl", "--unit", "data", "--out", tmp_path / "t.csv.gz")
    (row,) = read(tmp_path / "t.csv.gz")
    assert code == 0 and row["lengths"] == "54" and "data_lengths" not in row, err


@pytest.mark.parametrize("text, words", [
    ("not json\n", "line 1: not a JSON object"),
    ("[1]\n", "line 1: not a record"),
    (json.dumps({**RECORD, "series": [54, 54]}) + "\n", "line 1: not a flow record with a series"),
    (json.dumps({**RECORD, "series": None}) + "\n", "no TCP or UDP flow with a series; records have it with records.series"),
    ("\n", "no TCP or UDP flow"),
])
def test_broken_records(fenxi_train, tmp_path, text, words):
    (tmp_path / "r.jsonl").write_text(text)
    code, _, err = fenxi_train("series", tmp_path / "r.jsonl", "--out", tmp_path / "t.csv.gz")
    assert code == 65 and words in err


def unlabelled(tmp_path):
    content = [{k: v for k, v in r.items() if k != "label"} for r in rows(9)]
    return save(tmp_path / "t.csv", content, [c for c in content[0]]), content


def test_labels_by_file_and_5_tuple(fenxi_train, tmp_path):
    table, content = unlabelled(tmp_path)
    r = content[2]
    names = f"proto,src,sport,dst,dport,label\ntcp,{r['dst']},{r['dport']},{r['src']},{r['sport']},post\n"
    (tmp_path / "names.csv").write_text(names)
    code, out, err = fenxi_train("label", table, "--by-file", tmp_path / "names.csv", "--out", tmp_path / "o.csv.gz")
    assert code == 0 and "1 of 9 flows labelled" in out, err
    assert [(x["flow"], x["label"]) for x in read(tmp_path / "o.csv.gz")] == [("2", "post")]


def test_labels_by_host(fenxi_train, tmp_path):
    table, _ = unlabelled(tmp_path)
    (tmp_path / "hosts.csv").write_text("address,label\n10.0.0.1,camera\n10.0.0.2,plug\n")
    code, out, err = fenxi_train("label", table, "--by-hosts", tmp_path / "hosts.csv", "--out", tmp_path / "o.csv.gz", "--keep-unlabelled")
    assert code == 0, err
    assert [x["label"] for x in read(tmp_path / "o.csv.gz")][:3] == ["camera", "plug", ""]


def test_labels_by_ndpi(fenxi_train, tmp_path):
    table, content = unlabelled(tmp_path)
    r = content[0]
    (tmp_path / "n.csv").write_text(
        "flow_id,protocol,src_ip,src_port,dst_ip,dst_port,ndpi_proto_num,ndpi_proto,confidence\n"
        f"1,6,{r['src']},{r['sport']},{r['dst']},{r['dport']},91,TLS.Google,DPI,one,cell,more\n"
    )
    code, _, err = fenxi_train("label", table, "--by-ndpi", tmp_path / "n.csv", "--out", tmp_path / "o.csv.gz")
    assert code == 0, err
    (row,) = read(tmp_path / "o.csv.gz")
    assert (row["label"], row["confidence"]) == ("TLS.Google", "dpi")


def test_labels_for_fenxi(fenxi_train, tmp_path):
    table, content = unlabelled(tmp_path)
    (tmp_path / "hosts.csv").write_text("address,label\n10.0.0.1,camera\n")
    label = ("label", table, "--by-hosts", tmp_path / "hosts.csv", "--truth", tmp_path / "truth.jsonl")
    code, _, err = fenxi_train(*label, "--out", tmp_path / "o.csv.gz")
    assert code == 0, err
    (line,) = (tmp_path / "truth.jsonl").read_text().splitlines()
    r = content[0]
    assert json.loads(line) == {
        "proto": r["proto"], "src_port": r["sport"], "dst_port": r["dport"], "first_us": r["first_us"], "label": "camera",
    }
    code, _, err = fenxi_train(*label, "--out", tmp_path / "p.csv.gz")
    assert code == 73 and "truth.jsonl: exists already" in err and not (tmp_path / "p.csv.gz").exists()


def test_suffixes_match_whole_labels():
    suffixes = {"example.org": "a", "video.example.org": "b", "org": "c"}
    assert label.by_suffix("x.video.example.org", suffixes) == "b"
    assert label.by_suffix("notexample.org", suffixes) == "c"
    assert label.by_suffix("example.net", suffixes) is None


@pytest.mark.parametrize("content, text", [
    ("address,label\n10.0.0.77,\n", "line 2: an empty address or label"),
    ("host,label\n10.0.0.1,x\n", "line 1: no column address"),
    ("address,label\n10.99.0.1,x\n", "none of its 9 flows"),
])
def test_bad_lists_of_hosts(fenxi_train, tmp_path, content, text):
    table, _ = unlabelled(tmp_path)
    (tmp_path / "hosts.csv").write_text(content)
    code, _, err = fenxi_train("label", table, "--by-hosts", tmp_path / "hosts.csv", "--out", tmp_path / "o.csv.gz")
    assert code == 65 and text in err and not (tmp_path / "o.csv.gz").exists()


def test_usage(fenxi_train, tmp_path):
    table, _ = unlabelled(tmp_path)
    assert fenxi_train("label", table, "--out", tmp_path / "o.csv.gz")[0] == 64
    assert fenxi_train("label", table, "--by-server-name", "x.pcap", "--out", tmp_path / "o.csv.gz")[0] == 64
    assert fenxi_train("nothing")[0] == 64
    code, _, err = fenxi_train("series", tmp_path / "no.pcap", "--out", tmp_path / "o.csv.gz")
    assert code == 66 and "no such file" in err
