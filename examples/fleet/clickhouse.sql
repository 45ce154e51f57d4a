-- Flow records of any number of routers in ClickHouse: clickhouse-client --multiquery <clickhouse.sql
-- vector.toml feeds the table. Each view answers one question; duckdb.sql has the same ones.

CREATE DATABASE IF NOT EXISTS fenxi;

-- Vector may send a record twice; of equal ones, one stays. flow_id begins anew with each run, and first
-- does not.
CREATE TABLE IF NOT EXISTS fenxi.records
(
    router LowCardinality(String),
    flow_id UInt64,
    src String,
    dst String,
    src_port UInt16,
    dst_port UInt16,
    proto UInt8,
    first DateTime64(6, 'UTC'),
    last DateTime64(6, 'UTC'),
    final Bool,
    midstream Bool,
    packets_fwd UInt64,
    packets_rev UInt64,
    bytes_fwd UInt64,
    bytes_rev UInt64,
    end_reason LowCardinality(String),
    label LowCardinality(Nullable(String)),
    confidence Nullable(Float32),
    decided_by LowCardinality(Nullable(String)),
    behaviour LowCardinality(Nullable(String))
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(last)
ORDER BY (router, toStartOfHour(last), first, flow_id, last)
TTL toDateTime(last) + INTERVAL 400 DAY;

-- What came between two records of a flow counts for the hour of the last packet; a flow counts where it
-- ended. The host is the end with a private address, or the sender of the first packet.
CREATE OR REPLACE VIEW fenxi.traffic AS
WITH '^(10\\.|192\\.168\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|169\\.254\\.|100\\.(6[4-9]|[789][0-9]|1[01][0-9]|12[0-7])\\.|f[cd]|fe[89ab])' AS private,
    NOT match(src, private) AND match(dst, private) AS is_served
SELECT
    router,
    toStartOfHour(last) AS hour,
    ifNull(label, '') AS label,
    ifNull(decided_by, '') AS decided_by,
    if(is_served, dst, src) AS host,
    if(proto IN (1, 58), 'icmp', concat(toString(if(midstream AND src_port < dst_port, src_port, dst_port)), '/',
        multiIf(proto = 6, 'tcp', proto = 17, 'udp', toString(proto)))) AS service,
    toUInt64(final) AS flows,
    packets_fwd + packets_rev AS packets,
    if(is_served, bytes_rev, bytes_fwd) AS bytes_up,
    if(is_served, bytes_fwd, bytes_rev) AS bytes_down
FROM fenxi.records FINAL;

-- 1. How much of which label, hour by hour?
CREATE OR REPLACE VIEW fenxi.by_hour AS
SELECT hour, label, sum(flows) AS flows, sum(packets) AS packets, sum(bytes_up) AS bytes_up, sum(bytes_down) AS bytes_down
FROM fenxi.traffic GROUP BY hour, label ORDER BY hour, label;

-- 2. Which hosts are the busiest, with which label most?
CREATE OR REPLACE VIEW fenxi.by_host AS
SELECT router, host, sum(of_label.flows) AS flows, sum(of_label.bytes) AS bytes, argMax(label, (of_label.bytes, label)) AS most
FROM (SELECT router, host, label, sum(flows) AS flows, sum(bytes_up + bytes_down) AS bytes
      FROM fenxi.traffic GROUP BY router, host, label) AS of_label
GROUP BY router, host ORDER BY bytes DESC, router, host;

-- 3. Which services are used, by how many hosts?
CREATE OR REPLACE VIEW fenxi.by_service AS
SELECT service, label, uniqExact((router, host)) AS hosts, sum(flows) AS flows, sum(bytes_up + bytes_down) AS bytes
FROM fenxi.traffic GROUP BY service, label ORDER BY bytes DESC, service, label;

-- 4. Who decides labels, and how sure?
CREATE OR REPLACE VIEW fenxi.by_decision AS
SELECT ifNull(decided_by, '') AS decider, count() AS flows, round(avg(confidence), 3) AS confidence,
    countIf(label IS NULL OR label = 'unknown') AS unnamed
FROM fenxi.records FINAL WHERE final GROUP BY decider ORDER BY decider;

-- 5. Which router sees what, and which has fallen silent?
CREATE OR REPLACE VIEW fenxi.by_router AS
SELECT router, uniqExact(src) AS sources, countIf(final) AS flows, sum(bytes_fwd + bytes_rev) AS bytes, max(last) AS latest
FROM fenxi.records FINAL GROUP BY router ORDER BY router;
