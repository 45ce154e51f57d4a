# The office of the demo capture: which servers run and what their clients do.
# scripts/demo/record reads this file; desk, lab, noc and servers, the machines
# of its network, come from there, as do RUN, DOMAIN, HOST and fail.
# shellcheck shell=bash

# ---------------------------------------------------------------- the servers

# start NAME COMMAND...: a server in the background; its output goes to a log.
start() {
    local name=$1
    shift
    servers "$@" >"$RUN/log/$name" 2>&1 &
}

# await PORT...: until a server listens on each, TCP or UDP.
await() {
    local port tries
    for port in "$@"; do
        for ((tries = 100; ; tries--)); do
            [[ -z $(servers ss -Htuln "sport = :$port") ]] || break
            ((tries)) || fail "no server on port $port; logs:$(tail -n 3 "$RUN"/log/*)"
            sleep 0.1
        done
    done
}

at4() { echo "198.51.100.${HOST[$1]}"; }
at6() { echo "2001:db8:b::${HOST[$1]}"; }

make_keys() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$DOMAIN" \
        -addext "subjectAltName=DNS:*.$DOMAIN" \
        -keyout "$RUN/key.pem" -out "$RUN/cert.pem" 2>/dev/null
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$RUN/host_key"
    ssh-keygen -q -t ed25519 -N '' -C '' -f "$RUN/user_key"
}

# Text compresses and random bytes do not; sizes are a small site's.
make_content() {
    local www=$RUN/www
    mkdir -p "$www" "$RUN/files" "$RUN/git"
    {
        echo '<!doctype html><title>Office</title>'
        printf '<p>Room %d is free all day.\n' {1..120}
    } >"$www/index.html"
    printf '.room%d { color: #806040 }\n' {1..200} >"$www/style.css"
    printf 'rooms.push({ id: %d, free: true });\n' {1..400} >"$www/app.js"
    printf '{"ok":true}\n' >"$www/ping.json"
    openssl rand -out "$www/logo.png" 6000
    openssl rand -out "$www/photo.jpg" 14000
    openssl rand -out "$www/manual.pdf" 100000
    openssl rand -out "$RUN/files/disk.img" 70000
    cp "$www/app.js" "$www/style.css" "$RUN/files"
    git -c init.defaultBranch=main init -q "$RUN/git/notes"
    cp "$www/logo.png" "$www/app.js" "$RUN/git/notes"
    git -C "$RUN/git/notes" add .
    git -C "$RUN/git/notes" -c user.name=demo -c "user.email=demo@$DOMAIN" commit -q -m 'Notes'
}

start_web() {
    cat >"$RUN/nginx.conf" <<END
daemon off;
user root;
worker_processes 1;
pid $RUN/nginx.pid;
events {}
http {
    access_log off;
    include /etc/nginx/mime.types;
    ssl_certificate $RUN/cert.pem;
    ssl_certificate_key $RUN/key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
    server {
        listen 80;
        listen [::]:80;
        listen 443 ssl http2;
        listen [::]:443 ssl http2;
        root $RUN/www;
    }
}
END
    start nginx nginx -e stderr -c "$RUN/nginx.conf"
    start quic gtlsserver -q -d "$RUN/www" "$(at4 www)" 443 "$RUN/key.pem" "$RUN/cert.pem"
}

start_dns() {
    local name
    {
        printf 'server:\n directory: "%s"\n chroot: ""\n username: ""\n' "$RUN"
        printf ' pidfile: ""\n use-syslog: no\n access-control: 0.0.0.0/0 allow\n'
        printf ' access-control: ::/0 allow\n tls-service-key: key.pem\n tls-service-pem: cert.pem\n'
        printf ' interface: %s\n' "$(at4 dns)" "$(at6 dns)" "$(at4 dns)@853"
        printf ' local-zone: "%s." static\n' "$DOMAIN"
        for name in "${!HOST[@]}"; do
            printf ' local-data: "%s.%s. A %s"\n' "$name" "$DOMAIN" "$(at4 "$name")"
            printf ' local-data: "%s.%s. AAAA %s"\n' "$name" "$DOMAIN" "$(at6 "$name")"
        done
        # Too much for one UDP answer: the client has to ask again over TCP.
        printf " local-data: 'policy.$DOMAIN. TXT \"rule %d %0150d\"'\n" $(seq 1 24)
        printf 'remote-control:\n control-enable: no\n'
    } >"$RUN/unbound.conf"
    start unbound unbound -d -c "$RUN/unbound.conf"
}

start_shell_and_files() {
    mkdir -p /run/sshd
    cat >"$RUN/sshd_config" <<END
HostKey $RUN/host_key
AuthorizedKeysFile $RUN/user_key.pub
PermitRootLogin yes
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
PrintLastLog no
Subsystem sftp internal-sftp
END
    cat >"$RUN/ssh_config" <<END
IdentityFile $RUN/user_key
UserKnownHostsFile $RUN/known_hosts
StrictHostKeyChecking accept-new
LogLevel ERROR
END
    printf '[share]\npath = %s\nuse chroot = no\n' "$RUN/files" >"$RUN/rsyncd.conf"
    start sshd /usr/sbin/sshd -D -e -f "$RUN/sshd_config"
    start rsync rsync --daemon --no-detach --config="$RUN/rsyncd.conf"
    start git git daemon --reuseaddr --export-all --base-path="$RUN/git"
    start iperf3 iperf3 -s -B "$(at4 files)"
}

start_databases() {
    local postgres
    postgres=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    mkdir "$RUN/postgres" "$RUN/redis"
    chown postgres: "$RUN/postgres"
    (
        cd "$RUN/postgres"
        setpriv --reuid=postgres --regid=postgres --clear-groups \
            "$postgres/initdb" --auth=trust --no-sync -D "$RUN/postgres/data" >"$RUN/log/initdb"
        echo 'host all all all trust' >>"$RUN/postgres/data/pg_hba.conf"
    )
    start postgres setpriv --reuid=postgres --regid=postgres --clear-groups \
        "$postgres/postgres" -D "$RUN/postgres/data" -c 'listen_addresses=*' \
        -c "unix_socket_directories=$RUN/postgres"
    start redis redis-server --save '' --dir "$RUN/redis" --protected-mode no \
        --bind "$(at4 cache)" "$(at6 cache)"
}

start_others() {
    printf 'listener 1883\nallow_anonymous true\n' >"$RUN/mosquitto.conf"
    start mosquitto mosquitto -c "$RUN/mosquitto.conf"
    start smtp /usr/bin/python3 -m aiosmtpd -n -l "$(at4 mail):25" -c aiosmtpd.handlers.Sink
    # -x: the clock belongs to the host; nothing here may touch it.
    start chrony chronyd -x -d -u root -f /dev/null 'local stratum 8' 'allow all' \
        'cmdport 0' "pidfile $RUN/chrony.pid"
    start turn turnserver -n -a -u demo:demo -r "$DOMAIN" -L "$(at4 turn)" -E "$(at4 turn)" \
        --no-tls --no-dtls --no-cli --pidfile "$RUN/turn.pid" --log-file stdout
    start peer turnutils_peer -L "$(at4 turn)"
    printf 'rocommunity public\nagentaddress udp:161,udp6:161\nsysname %s\nsysdescr Demo\n' \
        "mon.$DOMAIN" >"$RUN/snmpd.conf"
    SNMP_PERSISTENT_DIR=$RUN/snmp start snmpd snmpd -f -Lo -C -c "$RUN/snmpd.conf" -p "$RUN/snmpd.pid"
    printf '%s\n' "Server=0.0.0.0/0,::/0" LogType=console PidFile=/run/zabbix/agent.pid \
        "Hostname=mon.$DOMAIN" >"$RUN/zabbix.conf"
    install -d -o zabbix /run/zabbix
    start zabbix zabbix_agentd -f -c "$RUN/zabbix.conf"
}

start_servers() {
    mkdir "$RUN/log"
    make_keys
    make_content
    start_web
    start_dns
    start_shell_and_files
    start_databases
    start_others
    await 22 25 53 80 123 161 443 853 873 1883 3478 3480 5201 5432 6379 9418 10050
}

# ---------------------------------------------------------------- the clients

# fetch OPTIONS URL...: one curl, so one connection for all URLs it can share.
fetch() {
    desk curl --silent --show-error --fail --cacert "$RUN/cert.pem" "$@" >"$RUN/discard"
}

# Somebody reading web pages: kept and short connections, HTTP and HTTPS, the two
# TLS versions, IPv4 and IPv6, now and then a long download or a mail.
play_desk() {
    local round ip www=www.$DOMAIN
    for round in {1..11}; do
        ip=-$((round % 2 ? 4 : 6))
        fetch $ip "http://$www/" "http://$www/style.css" "http://$www/logo.png"
        fetch $ip "http://$www/app.js"
        fetch $ip "http://$www/ping.json"
        fetch $ip --http1.1 "https://$www/" "https://$www/app.js" "https://$www/ping.json"
        fetch $ip --tls-max 1.2 "https://$www/logo.png"
        fetch $ip "https://$www/photo.jpg"
        fetch $ip --request POST --data "room=$round&from=10:00" -o /dev/null \
            "https://$www/index.html" 2>/dev/null || true   # nginx answers 405
        ((round % 2)) || desk gtlsclient -q --no-quic-dump --no-http-dump \
            --exit-on-all-streams-close "$(at4 www)" 443 \
            "https://$www/index.html" "https://$www/photo.jpg" >/dev/null 2>&1
        ((round % 7)) || fetch $ip "http://$www/manual.pdf"
        ((round % 5)) || fetch --crlf "smtp://mail.$DOMAIN/desk.$DOMAIN" --mail-from "desk@$DOMAIN" \
            --mail-rcpt "lab@$DOMAIN" --upload-file "$RUN/www/style.css"
        sleep 1
    done
}

# Types a line into a terminal, one key at a time.
type_line() {
    local line=$1 i
    for ((i = 0; i < ${#line}; i++)); do
        printf '%s' "${line:i:1}"
        sleep 0.07
    done
    printf '\r'
    sleep 0.5
}

remote() { lab ssh -F "$RUN/ssh_config" "$@"; }

# Somebody at work on servers: terminals, copies, repositories, databases.
play_lab() {
    local i shell=shell.$DOMAIN
    { type_line 'ls -l /etc'; type_line 'uptime'; type_line 'exit'; } \
        | remote -tt "$shell" >"$RUN/discard"
    lab psql -q -h "db.$DOMAIN" -U postgres >"$RUN/discard" <<'END'
create table room (id int primary key, name text, free boolean);
insert into room select i, 'room ' || i, i % 3 = 0 from generate_series(1, 400) i;
END
    lab iperf3 -c "files.$DOMAIN" -4 -n 200K >"$RUN/discard"
    for i in {1..6}; do
        remote "$shell" "seq 1 $((i * 300))" >"$RUN/discard"
        lab psql -q -h "db.$DOMAIN" -U postgres -c "select * from room where id < $((i * 30))" \
            -c 'select count(*) from room where free' >"$RUN/discard"
        lab redis-cli -h "cache.$DOMAIN" -r 5 -i 0.05 incr visits >"$RUN/discard"
        lab redis-cli -h "cache.$DOMAIN" set "room:$i" busy >"$RUN/discard"
        lab redis-cli -h "cache.$DOMAIN" get "room:$i" >"$RUN/discard"
        lab rsync -r "rsync://files.$DOMAIN/share/app.js" "$RUN/copy$i"
        sleep 0.5
    done
    lab scp -q -F "$RUN/ssh_config" "$shell:$RUN/files/disk.img" "$RUN/copy"
    lab scp -q -F "$RUN/ssh_config" "$RUN/www/app.js" "$shell:$RUN/copy"
    lab rsync -r -e "ssh -F $RUN/ssh_config" "$RUN/files/style.css" "$shell:$RUN/copy"
    lab rsync -r "rsync://files.$DOMAIN/share/disk.img" "$RUN/copy"
    lab git clone -q "git://files.$DOMAIN/notes" "$RUN/clone"
    lab git -C "$RUN/clone" fetch -q
    # 4,000-byte datagrams do not fit the MTU: fragments.
    lab iperf3 -c "files.$DOMAIN" -4 -u -l 4000 -b 2M -n 40K >"$RUN/discard"
    # Nobody listens there: a flow of two packets and an ICMP error.
    lab curl --silent "http://files.$DOMAIN:8080/" || true
    lab dig +tries=1 +timeout=1 -p 5353 "@$(at4 files)" "www.$DOMAIN" >"$RUN/discard" || true
    { type_line 'cat /etc/debian_version'; type_line 'exit'; } \
        | remote -tt -6 "$shell" >"$RUN/discard"
}

watch_once() {
    local key
    for key in agent.ping system.uptime 'system.cpu.load[,avg1]' 'net.if.in[eth0]'; do
        noc zabbix_get -s "mon.$DOMAIN" -k "$key" >"$RUN/discard"
    done
    noc snmpget -v2c -c public "mon.$DOMAIN" 1.3.6.1.2.1.1.3.0 >"$RUN/discard"
    noc turnutils_stunclient "$(at4 turn)" >"$RUN/discard"
    noc mosquitto_pub -h "mqtt.$DOMAIN" -q 1 -t office/room1 -m '{"celsius": 21.5}'
}

# Monitoring, sensors, calls, clocks and name look-ups of other kinds.
play_noc() {
    local i
    noc mosquitto_sub -h "mqtt.$DOMAIN" -t 'office/#' -W 25 >"$RUN/discard" 2>&1 &
    noc chronyd -Q -t 10 -u root -f /dev/null "server $(at4 time) iburst" "server $(at6 time) iburst" \
        'cmdport 0' "pidfile $RUN/chronyc.pid" >"$RUN/discard" 2>&1 &
    noc ping -q -c 4 "www.$DOMAIN" >"$RUN/discard"
    noc ping -q -6 -c 4 "www.$DOMAIN" >"$RUN/discard"
    noc ping -q -4 -c 2 -s 3000 "files.$DOMAIN" >"$RUN/discard"
    for i in {1..9}; do
        watch_once
        ((i % 5)) || noc snmpwalk -v2c -c public "mon.$DOMAIN" 1.3.6.1.2.1.2.2 >"$RUN/discard"
        ((i % 2)) || noc turnutils_uclient -c -u demo -w demo -e "$(at4 turn)" -n 20 -m 1 \
            "$(at4 turn)" >"$RUN/discard"
        ((i % 4)) || noc dig +tls "@$(at4 dns)" "mail.$DOMAIN" >"$RUN/discard"
        ((i % 2)) || noc dig +tcp "@$(at4 dns)" "db.$DOMAIN" "cache.$DOMAIN" >"$RUN/discard"
        noc dig "@$(at6 dns)" "no-such-host$i.$DOMAIN" >"$RUN/discard"
        sleep 0.8
    done
    noc dig "@$(at4 dns)" "policy.$DOMAIN" TXT >"$RUN/discard"
    noc turnutils_uclient -t -c -u demo -w demo -e "$(at4 turn)" -n 20 "$(at4 turn)" >"$RUN/discard"
    for i in {1..15}; do
        echo "{\"celsius\": 22.$i}"
        sleep 0.1
    done | noc mosquitto_pub -h "mqtt.$DOMAIN" -q 1 -t office/room2 -l
    wait
}
