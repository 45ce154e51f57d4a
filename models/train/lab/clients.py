"""Clients of the laboratory: for each protocol, by name, the command that exchanges something of `at.size` with a site.

A client is a command, or a command and what it reads.  Those marked "py" are in py_clients.py.
"""

import place
from place import HERE, KEYS, NAME, PASSWORD, PYTHON, UNPACKED, USER, WWW
from servers import bird_config, frr_config

BROWSER = ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")


def py(name, limit_s=10):
    return lambda at: ["timeout", limit_s, PYTHON, HERE / "py_clients.py", name, at.host, at.port, at.size, at.folder]


def url(at, scheme="http"):
    return f"{scheme}://{at.host}:{at.port}/{at.file}"


# Web

def curl(at):
    plain = ["curl", "-s", "-o", "/dev/null", url(at)]
    if at.size == 2:
        plain += ["-A", BROWSER[0], "-H", f"Accept: {BROWSER[1]}", "-H", "Accept-Language: en-US,en;q=0.5", "--compressed", "-b", f"session={'k3' * 40}", url(at)]
    return plain


def curl_tls(at):
    version = ["--tls-max", "1.2"] if at.size == 2 else []
    return ["curl", "-s", "-k", "-o", "/dev/null", *version, "--resolve", f"{NAME}:{at.port}:{at.host}", f"https://{NAME}:{at.port}/{at.file}"]


def openssl(at):
    version = ["-tls1_2"] if at.size == 2 else []
    script = f"(printf 'GET /{at.file} HTTP/1.0\\r\\nHost: {NAME}\\r\\n\\r\\n'; sleep 0.5) | openssl s_client -quiet {' '.join(version)} -servername {NAME} -connect {at.host}:{at.port}"
    return ["sh", "-c", script]


def gnutls(at):
    version = ["--priority", "NORMAL:-VERS-TLS1.3"] if at.size == 2 else []
    script = f"(printf 'GET /{at.file} HTTP/1.0\\r\\nHost: {NAME}\\r\\n\\r\\n'; sleep 0.5) | gnutls-cli --insecure --no-ca-verification {' '.join(version)} --sni-hostname={NAME} -p {at.port} {at.host}"
    return ["sh", "-c", script]


def openssl_dtls(at):
    lines = {1: 1, 2: 8, 3: 40}[at.size]
    return ["sh", "-c", f"(for i in $(seq {lines}); do echo line $i of the talk; sleep 0.02; done; sleep 0.3) | openssl s_client -dtls -connect {at.host}:{at.port} -servername {NAME} -quiet"]


def openssl_dtls_short(at):
    return ["sh", "-c", f"(echo hello; sleep 0.3) | openssl s_client -dtls1_2 -cipher {('ECDHE+AESGCM', 'ECDHE+CHACHA20', 'AES128-GCM-SHA256:ECDHE')[at.size - 1]} -connect {at.host}:{at.port}"]


def gnutls_dtls(at):
    lines = {1: 1, 2: 8, 3: 40}[at.size]
    return ["sh", "-c", f"(for i in $(seq {lines}); do echo line $i of the talk; sleep 0.02; done; sleep 0.3) | gnutls-cli --udp --insecure --no-ca-verification -p {at.port} {at.host}"]


def aria2(at):
    return ["aria2c", "-q", "--allow-overwrite=true", "-d", at.folder, "-o", "got", url(at)]


def ngtcp2(at):
    return ["gtlsclient", "-q", "--exit-on-all-streams-close", at.host, at.port, f"https://{NAME}:{at.port}/{at.file}"]


# Names, time, calls

def dig(at):
    return ["dig", f"@{at.host}", "-p", at.port, *{1: ["+noedns", f"host{at.port % 40 + 10}.{NAME}"], 2: [f"big.{NAME}", "TXT", f"mail.{NAME}", "AAAA"], 3: ["+tcp", f"{NAME}", "MX"]}[at.size]]


def drill(at):
    return ["drill", "-p", at.port, *{1: [f"host17.{NAME}", f"@{at.host}"], 2: [f"{NAME}", f"@{at.host}", "MX"], 3: ["-t", f"mail.{NAME}", f"@{at.host}", "AAAA"]}[at.size]]


def kdig(at):
    return ["kdig", f"@{at.host}", "-p", at.port, *{1: [f"www.{NAME}"], 2: ["+dnssec", f"many.{NAME}", "A"], 3: ["+tcp", f"{NAME}", "SOA"]}[at.size]]


def chrony(at):
    return ["chronyd", "-Q", "-u", "root", "-t", "6", f"server {at.host} port {at.port} iburst maxsamples {at.size}", f"pidfile {at.folder}/q.pid", "cmdport 0", "bindcmdaddress /"]


def ntpdig(at):
    return ["ntpdig", "-t", 2, "-p", at.size, at.host]


def stunclient(at):
    return ["sh", "-c", f"for i in $(seq {at.size}); do turnutils_stunclient -p {at.port} {at.host}; done"]


def uclient(at):
    return ["timeout", 3, "turnutils_uclient", "-n", {1: 1, 2: 5, 3: 20}[at.size], "-m", 1, "-u", USER, "-w", "secret", "-p", at.port, "-y", at.host]


def stunc(at):
    return ["timeout", 2, "stunc", f"{at.host}:{at.port}", {1: "-b", 2: "-n", 3: "-l"}[at.size]]


def sipp(at):
    return ["sipp", f"{at.host}:{at.port}", "-sn", "uac", "-i", at.guest, "-p", 21000 + at.size, "-m", at.size, "-r", 5, "-d", 200, "-nostdin", "-timeout", "6s"]


SCENARIO = """<?xml version="1.0"?><scenario name="x"><send retrans="500"><![CDATA[
{method} sip:{user}@[remote_ip]:[remote_port] SIP/2.0
Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]
From: <sip:{user}@lab.example>;tag=[call_number]
To: <sip:{user}@lab.example>
Call-ID: [call_id]
CSeq: 1 {method}
Contact: <sip:{user}@[local_ip]:[local_port];transport=[transport]>
Max-Forwards: 70
{more}Content-Length: 0

]]></send><recv response="{answer}"/></scenario>"""


def sipp_register(at):
    more = {1: "", 2: "Expires: 3600\nUser-Agent: Desk phone 12.3.1\n", 3: "Expires: 3600\nAllow: INVITE, ACK, CANCEL, OPTIONS, BYE, REFER, NOTIFY, MESSAGE, SUBSCRIBE, INFO\nUser-Agent: Soft phone 4.5\n"}
    text = SCENARIO.format(method="OPTIONS" if at.size == 2 else "REGISTER", user=f"person{at.size}", more=more[at.size], answer=200 if at.size == 2 else 401)
    return ["sipp", f"{at.host}:{at.port}", "-sf", at.write("scenario.xml", text), "-i", at.guest, "-p", 22000 + at.size, "-m", at.size, "-nostdin", "-timeout", "5s"]


def sofia(at):
    return ["timeout", "5", "sip-options", *{1: [], 2: ["--all"], 3: ["--1XX"]}[at.size], f"sip:person@{at.host}:{at.port}"]


# Shells and files

def command(at):
    return {1: "echo hello", 2: f"cat {WWW}/medium.html", 3: f"cat {WWW}/large.bin"}[at.size]


def ssh(at):
    return ["ssh", "-F", "none", "-p", at.port, "-i", KEYS / "user", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", f"{USER}@{at.host}", command(at)]


def dbclient(at):
    return ["dbclient", "-y", "-y", "-p", at.port, "-i", KEYS / "user.dropbear", f"{USER}@{at.host}", command(at)]


def plink(at):
    return ["plink", "-ssh", "-P", at.port, "-pw", PASSWORD, f"{USER}@{at.host}", command(at)], "y\ny\n"


def curl_ftp(at):
    return ["curl", "-s", "-o", "/dev/null", "--connect-timeout", "5", url(at, "ftp")] if at.size != 2 else ["curl", "-s", f"ftp://{at.host}:{at.port}/"]


def lftp(at):
    what = {1: "cls -l; pwd", 2: "cat medium.html > /dev/null", 3: "cat small.txt > /dev/null; cat large.bin > /dev/null; ls"}[at.size]
    return ["lftp", "-e", f"set net:timeout 4; set net:max-retries 1; set ftp:ssl-allow no; set ftp:sync-mode on; set net:connection-limit 1; {what}; quit", "-u", "anonymous,guest@", f"ftp://{at.host}:{at.port}"]


def tnftp(at):
    what = {1: "pwd\n", 2: "dir\nget medium.html /dev/null\n", 3: "binary\nget large.bin /dev/null\nget small.txt /dev/null\n"}[at.size]
    return ["tnftp", "-n", "-p", at.host, at.port], f"user anonymous guest@\n{what}quit\n"


def wget_ftp(at):
    return ["wget", "-q", "-t", "1", "-T", "5", "-O", "/dev/null", url(at, "ftp")]


def rsync(at):
    return ["rsync", "-q", "--port", at.port, *{1: [f"rsync://{at.host}/"], 2: [f"rsync://{at.host}/www/medium.html", at.folder], 3: ["-r", f"rsync://{at.host}/www/", at.folder]}[at.size]]


def smbclient(at):
    what = {1: "ls", 2: f"get medium.html {at.folder}/got", 3: f"get large.bin {at.folder}/got"}[at.size]
    return ["smbclient", f"//{at.host}/www", "-p", at.port, "-N", "-U", "guest%", "-c", what]


def smbclient_list(at):
    return ["smbclient", "-L", at.host, "-p", at.port, "-N", "-m", ("SMB2", "SMB3", "NT1")[at.size - 1], "--option=client min protocol=NT1"]


# Mail

def mail_of(at):
    return at.write("message", f"From: a@{NAME}\nTo: b@{NAME}\nSubject: test of size {at.size}\n\n" + "\n".join(place.WWW.joinpath(at.file).read_text()[i : i + 70] for i in range(0, at.bytes, 70)) + "\n")


def swaks(at):
    body = at.write("body", mail_of(at).read_text().split("\n\n", 1)[1][:60_000])
    return ["swaks", "--server", at.host, "--port", at.port, "--from", f"a@{NAME}", "--to", f"b@{NAME}", "--body", f"@{body}", *(["--helo", f"client.{NAME}"] if at.size > 1 else [])]


def curl_smtp(at):
    return ["curl", "-s", f"smtp://{at.host}:{at.port}/client.{NAME}", "--mail-from", f"a@{NAME}", "--mail-rcpt", f"b@{NAME}", "-T", mail_of(at)]


def msmtp(at):
    return ["msmtp", f"--host={at.host}", f"--port={at.port}", f"--from=a@{NAME}", f"b@{NAME}"], mail_of(at).read_text()


def curl_mail(scheme):
    def client(at):
        target = f"{scheme}://{at.host}:{at.port}/" + ({1: "", 2: "INBOX;MAILINDEX=1", 3: "INBOX;MAILINDEX=3"} if scheme == "imap" else {1: "", 2: "1", 3: "3"})[at.size]
        return ["curl", "-s", "-o", "/dev/null", "-u", f"{USER}:secret", target]
    return client


# Stores

SQL = {1: "SELECT 1", 2: "SELECT * FROM t WHERE i < 100", 3: "SELECT * FROM t"}


def psql(at):
    return ["psql", "-q", "-o", "/dev/null", f"host={at.host} port={at.port} user={'scram password=secret' if at.size == 2 else 'lab'} dbname=postgres sslmode={'prefer' if at.size == 1 else 'disable'}", "-c", SQL[at.size]]


def mysql(at):
    return ["mysql", "--no-defaults", "-h", at.host, "-P", at.port, "-u", "lab", "-psecret", "d", "-e", SQL[at.size]]


def redis_cli(at):
    return ["redis-cli", "-h", at.host, "-p", at.port, *{1: ["ping"], 2: ["set", "k", "v" * 500], 3: ["-r", "50", "incr", "n"]}[at.size]]


def memcstat(at):
    return [{1: "memcping", 2: "memcstat", 3: "memccapable"}[at.size], *(["-h", at.host, "-p", at.port] if at.size == 3 else [f"--servers={at.host}:{at.port}"])]


def ldapsearch(at):
    where = {1: ["-s", "base", "-b", "", "+"], 2: ["-b", "dc=lab,dc=example", "(uid=u17)"], 3: ["-D", "cn=admin,dc=lab,dc=example", "-w", "secret", "-b", "dc=lab,dc=example"]}[at.size]
    return ["ldapsearch", "-x", "-LLL", "-H", f"ldap://{at.host}:{at.port}", *where]


def curl_ldap(at):
    return ["curl", "-s", "-o", "/dev/null", f"ldap://{at.host}:{at.port}/dc=lab,dc=example" + {1: "", 2: "?mail?sub?(uid=u20)", 3: "?cn,mail?sub"}[at.size]]


def mosquitto_pub(at):
    return ["mosquitto_pub", "-h", at.host, "-p", at.port, "-t", f"house/room{at.port % 7}/temperature", "-m", {1: "21.5", 2: "x" * 400, 3: "y" * 5000}[at.size], "-q", {1: 0, 2: 1, 3: 2}[at.size], "-r"]


def mosquitto_sub(at):
    return ["mosquitto_sub", "-h", at.host, "-p", at.port, "-t", "house/#", "-W", "1", "-V", {1: "mqttv31", 2: "mqttv311", 3: "mqttv5"}[at.size]]


def snmpget(at):
    agent, base = f"udp:{at.host}:{at.port}", ["-r", "0", "-t", "2", "-c", "public"]
    return {1: ["snmpget", "-v1", *base, agent, "1.3.6.1.2.1.1.1.0"], 2: ["snmpget", "-v2c", *base, agent, "1.3.6.1.2.1.1.3.0", "1.3.6.1.2.1.1.5.0"], 3: ["snmpgetnext", "-v2c", *base, agent, "1.3.6.1.2.1.2"]}[at.size]


def snmpwalk(at):
    agent, base = f"udp:{at.host}:{at.port}", ["-v2c", "-r", "0", "-t", "2", "-c", "public"]
    return {1: ["snmpbulkget", *base, agent, "1.3.6.1.2.1.1"], 2: ["snmpwalk", *base, agent, "1.3.6.1.2.1.1"], 3: ["snmpbulkwalk", *base, agent, "1.3.6.1.2.1.2"]}[at.size]


# Routes, tickets, proxies

def routes(at):
    return {1: 3, 2: 60, 3: 900}[at.size]


def bird(at):
    return ["timeout", "6", "bird", "-f", "-c", at.write("guest.conf", bird_config(at, at.guest, at.host, False, routes(at)).replace("65002", "1")), "-s", at.folder / "guest.ctl"]


def gobgp(at):
    conf = at.write("guest.toml", f'[global.config]\nas = 65001\nrouter-id = "{at.guest}"\nport = -1\n[[neighbors]]\n[neighbors.config]\nneighbor-address = "{at.host}"\npeer-as = 1\n'
                                  f'[neighbors.transport.config]\nremote-port = {at.port}\n[neighbors.timers.config]\nconnect-retry = 1\nhold-time = {90 * at.size}\n')
    return ["timeout", "9", "gobgpd", "-f", conf, "--api-hosts", "127.0.0.1:50052"]


def frr(at):
    networks = "\n".join(f"network 10.9.{i}.0/24" for i in range(min(routes(at), 200)))
    conf = frr_config(at, at.guest, at.host, 65001, 1, f"neighbor {at.host} port {at.port}\nneighbor {at.host} timers connect 1\n{networks}")
    return ["timeout", "6", "/usr/lib/frr/bgpd", "-f", conf, "-l", at.guest, "-p", "1799", "-S", "-n", "-Z", "-i", at.folder / "guest.pid", "--vty_socket", at.folder, "-P", "0", "-u", "root", "-g", "root"]


def exabgp(at):
    conf = at.write("exabgp.conf", f"neighbor {at.host} {{\nrouter-id {at.guest};\nlocal-address {at.guest};\nlocal-as 65001;\npeer-as 1;\nconnect {at.port};\nstatic {{\n"
                    + "".join(f"route 10.8.{i}.0/24 next-hop {at.guest};\n" for i in range(min(routes(at), 200))) + "}\n}\n")
    return ["timeout", "6", "env", f"exabgp_api_cli=false", "exabgp_daemon_user=root", PYTHON.parent / "exabgp", "server", conf]


def kinit(at):
    return ["sh", "-c", f"echo secret | kinit {'-r 7d -f' if at.size == 3 else ''} lab" + ("" if at.size == 1 else " && kvno host/server.lab.example")]


def heimdal_kinit(at):
    password = at.write("password", "secret\n")
    return [UNPACKED / "heimdal-clients/usr/bin/kinit.heimdal", f"--password-file={password}", *(["--renewable"] if at.size > 1 else []), "lab@LAB.EXAMPLE"]


def socks(option):
    return lambda at: ["curl", "-s", "-o", "/dev/null", option, f"{at.host}:{at.port}", f"http://127.0.0.1:8098/{at.file}"]


def tftp(at):
    return ["curl", "-s", "-o", "/dev/null", url(at, "tftp")]


def atftp(at):
    return ["atftp", "-g", "-r", at.file, "-l", "/dev/null", at.host, at.port]


CLIENTS = {
    "HTTP": {"curl": curl, "wget": lambda at: ["wget", "-q", "-O", "/dev/null", url(at)], "ab": lambda at: ["ab", "-q", "-n", 6, "-c", 2, *(["-k"] if at.size == 2 else []), url(at)],
             "python": py("urllib"), "busybox": lambda at: ["busybox", "wget", "-q", "-O", "/dev/null", url(at)], "aria2": aria2, "httpx": py("httpx")},
    "TLS": {"curl": curl_tls, "openssl": openssl, "python": py("ssl"), "gnutls-cli": gnutls, "wget": lambda at: ["wget", "-q", "--no-check-certificate", "-O", "/dev/null", url(at, "https")]},
    "DNS": {"dig": dig, "drill": drill, "dnspython": py("dnspython"), "kdig": kdig},
    "SSH": {"openssh": ssh, "dropbear": dbclient, "paramiko": py("paramiko"), "asyncssh": py("asyncssh"), "plink": plink},
    "MQTT": {"mosquitto_pub": mosquitto_pub, "mosquitto_sub": mosquitto_sub, "paho": py("paho"), "gmqtt": py("gmqtt")},
    "SMTP": {"swaks": swaks, "curl": curl_smtp, "smtplib": py("smtplib"), "msmtp": msmtp, "aiosmtplib": py("aiosmtplib")},
    "FTP_CONTROL": {"curl": curl_ftp, "lftp": lftp, "ftplib": py("ftplib"), "wget": wget_ftp, "tnftp": tnftp, "aioftp": py("aioftp")},
    "PostgreSQL": {"psql": psql, "pg8000": py("pg8000"), "psycopg2": py("psycopg2"), "asyncpg": py("asyncpg")},
    "LDAP": {"ldapsearch": ldapsearch, "ldap3": py("ldap3"), "curl": curl_ldap, "impacket": py("impacket_ldap")},
    "SNMP": {"snmpget": snmpget, "snmpwalk": snmpwalk, "pysnmp": py("pysnmp"), "puresnmp": py("puresnmp")},
    "STUN": {"stunclient": stunclient, "uclient": uclient, "aioice": py("aioice", 4), "stunc": stunc, "pystun3": py("pystun3", 3)},
    "SIP": {"sipp": sipp, "sipp-register": sipp_register, "sofia": sofia},
    "NTP": {"chrony": chrony, "ntplib": py("ntplib"), "ntpdig": ntpdig},
    "QUIC": {"aioquic": py("aioquic"), "ngtcp2": ngtcp2},
    "BGP": {"bird": bird, "gobgp": gobgp, "frr": frr, "exabgp": exabgp},
    "Kerberos": {"mit": kinit, "impacket": py("impacket_krb"), "minikerberos": py("minikerberos"), "heimdal": heimdal_kinit},
    "NetBIOS": {"smbclient": smbclient, "smbclient-list": smbclient_list, "impacket": py("impacket_smb"), "smbprotocol": py("smbprotocol")},
    "DTLS": {"openssl": openssl_dtls, "openssl-suites": openssl_dtls_short, "gnutls-cli": gnutls_dtls},
    "Redis": {"redis-cli": redis_cli, "redis-py": py("redis")}, "Memcached": {"pymemcache": py("pymemcache"), "memcstat": memcstat},
    "MySQL": {"mysql": mysql, "pymysql": py("pymysql")}, "IMAP": {"curl": curl_mail("imap"), "imaplib": py("imaplib")},
    "POP3": {"curl": curl_mail("pop3"), "poplib": py("poplib")}, "RSYNC": {"rsync": rsync}, "TFTP": {"curl": tftp, "atftp": atftp},
    "SOCKS": {"curl4": socks("--socks4"), "socks-curl5": socks("--socks5")},
}
