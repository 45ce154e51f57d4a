-- Flow records in JSON Lines on one machine: duckdb -init duckdb.sql, then FROM by_host LIMIT 10;
-- Each view answers one question; clickhouse.sql has the same ones.

-- records.path with the files that were rotated.
SET VARIABLE records = coalesce(getvariable('records'), '/var/lib/fenxi/flows.jsonl*');
-- records.series may make lines long.
CREATE OR REPLACE VIEW records AS
SELECT 'here' AS router, * EXCLUDE (type)
FROM read_ndjson(getvariable('records'), maximum_object_size = 16777216, columns = {
    type: 'VARCHAR', flow_id: 'UBIGINT', src: 'VARCHAR', dst: 'VARCHAR', src_port: 'USMALLINT',
    dst_port: 'USMALLINT', proto: 'UTINYINT', first: 'TIMESTAMP', last: 'TIMESTAMP', final: 'BOOLEAN',
    midstream: 'BOOLEAN', packets_fwd: 'UBIGINT', packets_rev: 'UBIGINT', bytes_fwd: 'UBIGINT',
    bytes_rev: 'UBIGINT', end_reason: 'VARCHAR', label: 'VARCHAR', confidence: 'FLOAT',
    decided_by: 'VARCHAR', behaviour: 'VARCHAR'
})
WHERE type = 'flow';

CREATE OR REPLACE MACRO is_private(address) AS regexp_matches(address,
    '^(10\.|192\.168\.|172\.(1[6-9]|2[0-9]|3[01])\.|169\.254\.|100\.(6[4-9]|[789][0-9]|1[01][0-9]|12[0-7])\.|f[cd]|fe[89ab])');

-- What came between two records of a flow counts for the hour of the last packet; a flow counts where it
-- ended. The host is the end with a private address, or the sender of the first packet.
CREATE OR REPLACE VIEW traffic AS
SELECT
    router,
    date_trunc('hour', last) AS hour,
    coalesce(label, '') AS label,
    coalesce(decided_by, '') AS decided_by,
    if(is_served, dst, src) AS host,
    if(proto IN (1, 58), 'icmp', if(midstream AND src_port < dst_port, src_port, dst_port) || '/'
        || CASE proto WHEN 6 THEN 'tcp' WHEN 17 THEN 'udp' ELSE proto::VARCHAR END) AS service,
    final::UBIGINT AS flows,
    packets_fwd + packets_rev AS packets,
    if(is_served, bytes_rev, bytes_fwd) AS bytes_up,
    if(is_served, bytes_fwd, bytes_rev) AS bytes_down
FROM (
    SELECT *, NOT is_private(src) AND is_private(dst) AS is_served FROM records
);

-- 1. How much of which label, hour by hour?
CREATE OR REPLACE VIEW by_hour AS
SELECT hour, label, sum(flows) AS flows, sum(packets) AS packets, sum(bytes_up) AS bytes_up, sum(bytes_down) AS bytes_down
FROM traffic GROUP BY hour, label ORDER BY hour, label;

-- 2. Which hosts are the busiest, with which label most?
CREATE OR REPLACE VIEW by_host AS
SELECT router, host, sum(flows) AS flows, sum(bytes) AS bytes, arg_max(label, (bytes, label)) AS most
FROM (SELECT router, host, label, sum(flows) AS flows, sum(bytes_up + bytes_down) AS bytes
      FROM traffic GROUP BY router, host, label)
GROUP BY router, host ORDER BY bytes DESC, router, host;

-- 3. Which services are used, by how many hosts?
CREATE OR REPLACE VIEW by_service AS
SELECT service, label, count(DISTINCT (router, host)) AS hosts, sum(flows) AS flows, sum(bytes_up + bytes_down) AS bytes
FROM traffic GROUP BY service, label ORDER BY bytes DESC, service, label;

-- 4. Who decides labels, and how sure?
CREATE OR REPLACE VIEW by_decision AS
SELECT coalesce(decided_by, '') AS decider, count(*) AS flows, round(avg(confidence), 3) AS confidence,
    count(*) FILTER (label IS NULL OR label = 'unknown') AS unnamed
FROM records WHERE final GROUP BY decider ORDER BY decider;

-- 5. Which router sees what, and which has fallen silent?
CREATE OR REPLACE VIEW by_router AS
SELECT router, count(DISTINCT src) AS sources, count(*) FILTER (final) AS flows, sum(bytes_fwd + bytes_rev) AS bytes, max(last) AS latest
FROM records GROUP BY router ORDER BY router;
