"""Servers of the laboratory: for each protocol, by name, what starts one at a site.

A server is a list of commands (one process each).  Those marked "py" are in py_servers.py.
"""

import pwd
import shutil
import subprocess

from place import HERE, HOME, KEYS, NAME, PASSWORD, PYTHON, UNPACKED, USER, WWW


def py(name):
    return lambda at: [[PYTHON, HERE / "py_servers.py", name, at.host, at.port, at.folder]]


# Web

def nginx_config(at, listen):
    return at.write("nginx.conf", f"""
daemon off; master_process off; pid {at.folder}/pid; error_log {at.folder}/errors; events {{}}
http {{ access_log off; server {{ listen {at.host}:{listen}; root {WWW};
ssl_certificate {KEYS}/chain.pem; ssl_certificate_key {KEYS}/leaf.key; }} }}
""")


def nginx(at):
    return [["nginx", "-p", at.folder, "-c", nginx_config(at, at.port)]]


def nginx_tls(at):
    return [["nginx", "-p", at.folder, "-c", nginx_config(at, f"{at.port} ssl http2")]]


def lighttpd(at):
    return [["lighttpd", "-D", "-f", at.write("lighttpd.conf", f'server.document-root = "{WWW}"\nserver.port = {at.port}\nserver.bind = "{at.host}"\n')]]


def busybox_http(at):
    return [["busybox", "httpd", "-f", "-p", f"{at.host}:{at.port}", "-h", WWW]]


def python_http(at):
    return [["python3", "-m", "http.server", at.port, "--bind", at.host, "--directory", WWW]]


def openssl(at):
    return [["sh", "-c", f"cd {WWW} && exec openssl s_server -accept {at.host}:{at.port} -cert {KEYS}/leaf.pem -cert_chain {KEYS}/ca.pem -key {KEYS}/leaf.key -WWW"]]


def stunnel(at):
    conf = at.write("stunnel.conf", f"foreground = yes\npid =\n[web]\naccept = {at.host}:{at.port}\nconnect = 127.0.0.1:8099\ncert = {KEYS}/both.pem\n")
    return [["stunnel4", conf], ["busybox", "httpd", "-f", "-p", "127.0.0.1:8099", "-h", WWW]]


def gnutls(at):
    return [["gnutls-serv", "--http", "-p", at.port, "--x509certfile", KEYS / "chain.pem", "--x509keyfile", KEYS / "leaf.key", "-q"]]


def openssl_dtls(at):
    # It serves one client only, and reads what to say to it.
    serve = f"openssl s_server -dtls -naccept 1 -accept {at.host}:{at.port} -cert {KEYS}/leaf.pem -cert_chain {KEYS}/ca.pem -key {KEYS}/leaf.key -quiet"
    return [["sh", "-c", f"mkfifo {at.folder}/words; exec 3<>{at.folder}/words; while sleep 0.1; do {serve} <&3; done"]]


def gnutls_dtls(at):
    return [["gnutls-serv", "--udp", "--echo", "-p", at.port, "--x509certfile", KEYS / "chain.pem", "--x509keyfile", KEYS / "leaf.key", "-q"]]


def ngtcp2(at):
    return [["gtlsserver", "-q", "-d", WWW, at.host, at.port, KEYS / "leaf.key", KEYS / "chain.pem"]]


# Names, time, calls

ZONE = f"""$ORIGIN {NAME}.
$TTL 300
@ SOA ns hostmaster 1 3600 600 86400 300
@ NS ns
@ MX 10 mail
@ TXT "{'v=spf1 include:mail.example ' * 7}"
ns A 192.0.2.1
mail A 192.0.2.2
mail AAAA 2001:db8::2
www CNAME mail
big TXT "{'k' * 250}" "{'l' * 250}" "{'m' * 200}"
""" + "".join(f"host{i} A 192.0.2.{i}\n" for i in range(10, 60)) + "".join(f"many A 192.0.2.{i}\n" for i in range(10, 30))


def dnsmasq(at):
    more = [f"--host-record=host{i}.{NAME},192.0.2.{i}" for i in range(10, 60)]
    return [["dnsmasq", "-k", "-p", at.port, "-u", "root", "--no-resolv", "--no-hosts", "--listen-address", at.host, "--bind-interfaces", "--pid-file=",
             f"--mx-host={NAME},mail.{NAME},10", f"--txt-record=big.{NAME},{'k' * 250}", f"--host-record=mail.{NAME},192.0.2.2,2001:db8::2", *more]]


def named(at):
    at.write("zone", ZONE)
    conf = at.write("named.conf", f"""options {{ directory "{at.folder}"; pid-file none; listen-on port {at.port} {{ {at.host}; }}; listen-on-v6 {{ none; }};
allow-transfer {{ any; }}; recursion no; session-keyfile none; }}; controls {{}}; zone "{NAME}" {{ type primary; file "zone"; }};""")
    return [["named", "-g", "-c", conf]]


def unbound(at):
    data = "".join(f'local-data: "host{i}.{NAME}. 300 IN A 192.0.2.{i}"\n' for i in range(10, 60))
    data += f'local-data: "{NAME}. 300 IN MX 10 mail.{NAME}."\nlocal-data: "mail.{NAME}. 300 IN AAAA 2001:db8::2"\n'
    conf = at.write("unbound.conf", f'server:\ninterface: {at.host}\nport: {at.port}\naccess-control: 0.0.0.0/0 allow\nchroot: ""\nusername: ""\n'
                                    f'pidfile: ""\ndirectory: "{at.folder}"\nuse-syslog: no\nmodule-config: "iterator"\nlocal-zone: "{NAME}." static\n{data}')
    return [["unbound", "-d", "-c", conf]]


def knot(at):
    at.write(f"{NAME}.zone", ZONE)
    conf = at.write("knot.conf", f"server:\n    listen: {at.host}@{at.port}\n    rundir: {at.folder}\ndatabase:\n    storage: {at.folder}\n"
                                 f"acl:\n  - id: all\n    action: transfer\n    address: 0.0.0.0/0\nzone:\n  - domain: {NAME}\n    storage: {at.folder}\n    acl: all\n")
    return [["knotd", "-c", conf]]


def nsd(at):
    at.write("zone", ZONE)
    conf = at.write("nsd.conf", f'server:\nip-address: {at.host}@{at.port}\nusername: ""\npidfile: ""\nzonesdir: "{at.folder}"\nxfrdir: "{at.folder}"\nzonelistfile: '
                                f'"{at.folder}/list"\nxfrdfile: ""\nremote-control:\ncontrol-enable: no\nzone:\nname: {NAME}\nzonefile: zone\nprovide-xfr: 0.0.0.0/0 NOKEY\n')
    return [["nsd", "-d", "-c", conf]]


def chronyd(at):
    conf = at.write("chrony.conf", f"port {at.port}\nbindaddress {at.host}\nallow all\nlocal stratum 5\ncmdport 0\nbindcmdaddress /\npidfile {at.folder}/pid\n")
    return [["chronyd", "-x", "-d", "-u", "root", "-f", conf]]


def ntpsec(at):
    at.listen = 123
    conf = at.write("ntp.conf", "server 127.127.1.0\ndisable ntp\nrestrict default limited\ninterface ignore wildcard\ninterface listen 10.99.0.1\ninterface listen 127.0.0.1\ntos orphan 5\n")
    return [[UNPACKED / "ntpsec/usr/sbin/ntpd", "-n", "-c", conf, "-g"]]


def coturn(at):
    return [["turnserver", "-n", "-p", at.port, "-L", at.host, "-a", "-u", f"{USER}:secret", "-r", NAME, "--no-tls", "--no-dtls", "--no-cli",
             "--pidfile", at.folder / "pid", "--db", at.folder / "db", "-l", "stdout", "--allow-loopback-peers"]]


def kamailio_stun(at):
    return kamailio(at, 'loadmodule "stun.so"\n')


def kamailio(at, more=""):
    route = 'request_route {\nif (is_method("REGISTER")) { sl_send_reply("401", "Unauthorized"); exit; }\nsl_send_reply("200", "OK");\n}\n'
    conf = at.write("kamailio.cfg", f'#!KAMAILIO\nchildren=1\nmpath="/usr/lib/x86_64-linux-gnu/kamailio/modules/"\nloadmodule "sl.so"\nloadmodule "pv.so"\nloadmodule "textops.so"\n'
                                    f'loadmodule "maxfwd.so"\n{more}{route}')
    return [["kamailio", "-DD", "-E", "-f", conf, "-l", f"udp:{at.host}:{at.port}", "-Y", at.folder]]


def sipp(at):
    return [["sipp", "-sn", "uas", "-i", at.host, "-p", at.port, "-nostdin"]]


# Shells and files

def sshd(at):
    conf = at.write("sshd_config", f"ListenAddress {at.host}:{at.port}\nHostKey {KEYS}/host_ed25519\nHostKey {KEYS}/host_rsa\nUsePAM no\nStrictModes no\nPidFile none\n"
                                   f"PasswordAuthentication yes\nSubsystem sftp internal-sftp\n")
    return [["sh", "-c", f"mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e -f {conf}"]]


def dropbear(at):
    return [["dropbear", "-F", "-E", "-r", KEYS / "dropbear", "-p", f"{at.host}:{at.port}", "-P", at.folder / "pid"]]


def proftpd(at):
    conf = at.write("proftpd.conf", f"ServerType standalone\nPort {at.port}\nDefaultAddress {at.host}\nUser nobody\nGroup nogroup\nPidFile {at.folder}/pid\nScoreboardFile {at.folder}/board\nRequireValidShell off\n"
                                    f"DelayEngine off\nWtmpLog off\n<Anonymous {WWW}>\nUser {USER}\nGroup nogroup\nUserAlias anonymous {USER}\n</Anonymous>\n")
    return [["proftpd", "-n", "-c", conf]]


def vsftpd(at):
    conf = at.write("vsftpd.conf", f"listen=YES\nlisten_address={at.host}\nlisten_port={at.port}\nanonymous_enable=YES\nanon_root={WWW}\nsecure_chroot_dir={WWW}\nftp_username={USER}\n"
                                   "background=NO\nseccomp_sandbox=NO\nno_anon_password=NO\n")
    return [[UNPACKED / "vsftpd/usr/sbin/vsftpd", conf]]


def rsyncd(at):
    conf = at.write("rsyncd.conf", f"use chroot = no\nreverse lookup = no\n[www]\npath = {WWW}\n")
    return [["rsync", "--daemon", "--no-detach", f"--address={at.host}", f"--port={at.port}", f"--config={conf}"]]


def atftpd(at):
    return [["atftpd", "--daemon", "--no-fork", "--bind-address", at.host, "--port", at.port, "--user", "root", WWW]]


def smbd(at):
    conf = at.write("smb.conf", f"[global]\nsmb ports = {at.port}\nbind interfaces only = no\nmap to guest = bad user\nguest account = nobody\nserver min protocol = NT1\n"
                    + "".join(f"{n} = {at.folder}\n" for n in ("private dir", "lock directory", "state directory", "cache directory", "pid directory", "ncalrpc dir"))
                    + f"load printers = no\ndisable spoolss = yes\n[www]\npath = {WWW}\nguest ok = yes\n")
    return [["smbd", "-F", "--no-process-group", "-s", conf, "-p", at.port, f"--log-basename={at.folder}"]]


def impacket_smb(at):
    return [[PYTHON, PYTHON.parent / "smbserver.py", "-smb2support", "-ip", at.host, "-port", at.port, "www", WWW]]


# Mail

def opensmtpd(at):
    conf = at.write("smtpd.conf", f'listen on {at.host} port {at.port}\naction "queue" relay host "smtp://127.0.0.1:9"\nmatch from any for any action "queue"\n')
    return [["smtpd", "-d", "-f", conf]]


def exim(at):
    conf = at.write("exim.conf", f"daemon_smtp_ports = {at.port}\nlocal_interfaces = {at.host}\nprimary_hostname = mail.{NAME}\nspool_directory = {at.folder}/spool\nlog_file_path = {at.folder}/%slog\n"
                    "exim_user = root\nexim_group = root\nnever_users =\nqueue_only\nacl_smtp_rcpt = all\nacl_smtp_data = all\nbegin acl\nall:\n  accept\nbegin routers\nall:\n"
                    "  driver = accept\n  transport = null\nbegin transports\nnull:\n  driver = appendfile\n  file = /dev/null\n  user = nobody\n")
    return [[UNPACKED / "exim4-daemon-light/usr/sbin/exim4", "-bdf", "-C", conf]]


def aiosmtpd(at):
    return [[PYTHON, "-m", "aiosmtpd", "-n", "-l", f"{at.host}:{at.port}", "-c", "aiosmtpd.handlers.Sink"]]


def dovecot(at, protocol="imap"):
    user = pwd.getpwnam(USER)
    at.write("users", f"{USER}:{{PLAIN}}secret:{user.pw_uid}:{user.pw_gid}::{at.folder}/mail\n")
    box = at.folder / "mail"
    for name in ("new", "cur", "tmp"):
        (box / name).mkdir(parents=True)
    for size, name in ((1, "small.txt"), (2, "medium.html"), (3, "large.bin")):
        (box / "new" / f"{size}.M1P1.host").write_text(f"From: a@{NAME}\nTo: b@{NAME}\nSubject: {name}\n\n" + (WWW / name).read_text())
    subprocess.run(["chown", "-R", USER, box], check=True)
    conf = at.write("dovecot.conf", f"""protocols = {protocol}
base_dir = {at.folder}/run\nlisten = {at.host}\nssl = no\ndisable_plaintext_auth = no\nlog_path = {at.folder}/log\nfirst_valid_uid = 1\nmail_location = maildir:{box}
default_internal_user = root\ndefault_login_user = nobody\ndefault_internal_group = root
passdb {{\n driver = passwd-file\n args = {at.folder}/users\n}}\nuserdb {{\n driver = passwd-file\n args = {at.folder}/users\n}}
service {protocol}-login {{\n chroot =\n inet_listener {protocol} {{\n port = {at.port}\n }}\n}}\n""")
    return [["dovecot", "-F", "-c", conf]]


def dovecot_pop3(at):
    return dovecot(at, "pop3")


# Stores

PG = "/usr/lib/postgresql/15/bin"


def postgres_folder(at):
    """A database cluster of the user postgres, with a role that needs no password and one that does."""
    folder = at.folder / "data"
    shutil.chown(at.folder, "postgres")
    as_postgres = ["runuser", "-u", "postgres", "--"]
    subprocess.run([*as_postgres, f"{PG}/initdb", "-D", folder, "-A", "trust", "--no-sync"], check=True, stdout=subprocess.DEVNULL)
    sql = f"CREATE ROLE lab LOGIN;\nCREATE ROLE scram LOGIN PASSWORD 'secret';\nCREATE TABLE t AS SELECT i, repeat('word ', i % 50) AS w FROM generate_series(1, 5000) i;\nGRANT ALL ON t TO PUBLIC;\n"
    subprocess.run([*as_postgres, f"{PG}/postgres", "--single", "-j", "-D", folder, "postgres"], input=sql.replace("\n", "\n\n"), text=True, check=True, stdout=subprocess.DEVNULL)
    (folder / "pg_hba.conf").write_text("local all all trust\nhost all scram all scram-sha-256\nhost all all all trust\n")
    return folder


def postgres(at, port=None, host=None):
    return [["runuser", "-u", "postgres", "--", f"{PG}/postgres", "-D", postgres_folder(at), "-h", host or at.host, "-p", port or at.port, "-k", at.folder]]


def pgbouncer(at):
    users = at.write("users.txt", '"lab" ""\n"scram" "secret"\n')
    hba = at.write("hba.conf", "host all scram 0.0.0.0/0 scram-sha-256\nhost all all 0.0.0.0/0 trust\n")
    conf = at.write("pgbouncer.ini", f"[databases]\npostgres = host=127.0.0.1 port=5999\n[pgbouncer]\nlisten_addr = {at.host}\nlisten_port = {at.port}\nauth_type = hba\nauth_hba_file = {hba}\n"
                                     f"auth_file = {users}\nunix_socket_dir =\nlogfile = {at.folder}/log\nignore_startup_parameters = extra_float_digits,jit\n")
    return [*postgres(at, 5999, "127.0.0.1"), ["runuser", "-u", "postgres", "--", "pgbouncer", conf]]


def mariadb(at):
    subprocess.run(["mariadb-install-db", f"--datadir={at.folder}/data", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"], stdout=subprocess.DEVNULL)
    init = at.write("init.sql", "CREATE USER lab IDENTIFIED BY 'secret';\nGRANT ALL ON *.* TO lab;\nCREATE DATABASE d;\nCREATE TABLE d.t AS SELECT seq AS i, REPEAT('word ', seq % 50) AS w FROM seq_1_to_5000;\n")
    return [["mariadbd", "--no-defaults", f"--datadir={at.folder}/data", "--user=root", f"--bind-address={at.host}", f"--port={at.port}", f"--socket={at.folder}/socket",
             f"--init-file={init}", "--skip-name-resolve"]]


def redis(at):
    return [["redis-server", "--bind", at.host, "--port", at.port, "--protected-mode", "no", "--save", "", "--dir", at.folder]]


def memcached(at):
    return [["memcached", "-u", "root", "-l", at.host, "-p", at.port, "-I", "2m"]]


def slapd(at):
    people = "".join(f"dn: uid=u{i},dc=lab,dc=example\nobjectClass: inetOrgPerson\nuid: u{i}\ncn: User {i}\nsn: {i}\nmail: u{i}@{NAME}\n\n" for i in range(300))
    ldif = at.write("seed.ldif", f"dn: dc=lab,dc=example\nobjectClass: dcObject\nobjectClass: organization\ndc: lab\no: Lab\n\n{people}")
    (at.folder / "db").mkdir()
    conf = at.write("slapd.conf", "".join(f"include /etc/ldap/schema/{n}.schema\n" for n in ("core", "cosine", "inetorgperson"))
                    + f'modulepath /usr/lib/ldap\nmoduleload back_mdb\npidfile {at.folder}/pid\ndatabase mdb\nsuffix "dc=lab,dc=example"\nrootdn "cn=admin,dc=lab,dc=example"\nrootpw secret\ndirectory {at.folder}/db\n')
    subprocess.run(["slapadd", "-q", "-f", conf, "-l", ldif], check=True)
    return [["slapd", "-d", "0", "-f", conf, "-h", f"ldap://{at.host}:{at.port}"]]


def mosquitto(at):
    return [["mosquitto", "-c", at.write("mosquitto.conf", f"listener {at.port} {at.host}\nallow_anonymous true\nuser root\n")]]


def snmpd(at):
    conf = at.write("snmpd.conf", "rocommunity public\nsyslocation laboratory\nsyscontact nobody\n")
    return [["snmpd", "-f", "-Lo", "-C", "-c", conf, "-I", "-smux", f"udp:{at.host}:{at.port}"]]


def snmpsim(at):
    data = at.folder / "data"
    data.mkdir()
    (data / "public.snmprec").write_text("1.3.6.1.2.1.1.1.0|4|Simulated router, release 12\n1.3.6.1.2.1.1.3.0|67|233425120\n1.3.6.1.2.1.1.5.0|4|sim\n"
                                         + "".join(f"1.3.6.1.2.1.2.2.1.10.{i}|65|{i * 1013}\n" for i in range(1, 200)))
    return [[PYTHON, PYTHON.parent / "snmpsim-command-responder", f"--data-dir={data}", f"--cache-dir={at.folder}/cache", f"--agent-udpv4-endpoint={at.host}:{at.port}",
             "--process-user=root", "--process-group=root"]]


# Routes, tickets, proxies

def bird_config(at, own, other, passive, routes):
    lines = "".join(f"route 10.{i // 250}.{i % 250}.0/24 blackhole;\n" for i in range(routes))
    port = "" if passive else f" port {at.port}"
    return (f"router id {own};\nprotocol device {{}}\nprotocol static {{ ipv4; {lines} }}\nprotocol bgp peer {{ local {own}{f' port {at.port}' if passive else ''} as 65001;\n"
            f"neighbor {other}{port} as 65002; {'passive;' if passive else 'connect delay time 1; error wait time 1,1;'} ipv4 {{ import all; export all; }}; }}\n")


def bird(at):
    return [["bird", "-f", "-c", at.write("bird.conf", bird_config(at, at.host, at.guest, True, 40).replace("65001", "1").replace("65002", "65001")), "-s", at.folder / "ctl"]]


def gobgp(at):
    conf = at.write("gobgp.toml", f'[global.config]\nas = 1\nrouter-id = "{at.host}"\nport = {at.port}\nlocal-address-list = ["{at.host}"]\n[[neighbors]]\n[neighbors.config]\n'
                                  f'neighbor-address = "{at.guest}"\npeer-as = 65001\n[neighbors.transport.config]\npassive-mode = true\n')
    return [["gobgpd", "-f", conf, "--api-hosts", "127.0.0.1:50051"]]


def frr_config(at, own, other, asn, peer, more):
    return at.write("bgpd.conf", f"router bgp {asn}\nbgp router-id {own}\nno bgp ebgp-requires-policy\nno bgp network import-check\nneighbor {other} remote-as {peer}\n{more}\n"
                                 "network 172.16.1.0/24\nnetwork 172.16.2.0/24\n")


def frr(at):
    conf = frr_config(at, at.host, at.guest, 1, 65001, f"neighbor {at.guest} passive")
    return [["/usr/lib/frr/bgpd", "-f", conf, "-l", at.host, "-p", at.port, "-S", "-n", "-Z", "-i", at.folder / "pid", "--vty_socket", at.folder, "-P", "0", "-u", "root", "-g", "root"]]


def krb5_config(at, kdc):
    at.write("krb5.conf", f"[libdefaults]\ndefault_realm = LAB.EXAMPLE\ndns_lookup_kdc = false\nrdns = false\nudp_preference_limit = 1400\n"
                          f"[realms]\nLAB.EXAMPLE = {{\nkdc = {kdc}\n}}\n")


def mit_kdc(at):
    krb5_config(at, f"{at.host}:{at.port}")
    at.write("kdc.conf", f"[kdcdefaults]\nkdc_ports = {at.port}\nkdc_tcp_ports = {at.port}\n[realms]\nLAB.EXAMPLE = {{\ndatabase_name = {at.folder}/principal\nkey_stash_file = {at.folder}/stash\n"
                         f"kdc_ports = {at.port}\nkdc_tcp_ports = {at.port}\n}}\n")
    from place import environment

    run = lambda *argv: subprocess.run(argv, check=True, env=environment(at.folder), stdout=subprocess.DEVNULL)
    run("kdb5_util", "create", "-s", "-P", "master")
    run("kadmin.local", "-q", "addprinc -pw secret lab")
    run("kadmin.local", "-q", "addprinc -randkey +requires_preauth host/server.lab.example")
    run("kadmin.local", "-q", "modprinc +requires_preauth lab")
    return [["krb5kdc", "-n", "-P", at.folder / "pid"]]


def heimdal_kdc(at):
    kdc, kadmin = UNPACKED / "heimdal-kdc/usr/lib/heimdal-servers/kdc", UNPACKED / "heimdal-clients/usr/bin/kadmin.heimdal"
    at.write("krb5.conf", f"[libdefaults]\ndefault_realm = LAB.EXAMPLE\ndns_lookup_kdc = false\n[realms]\nLAB.EXAMPLE = {{\nkdc = {at.host}:{at.port}\n}}\n[kdc]\n"
                          f"database = {{\ndbname = {at.folder}/heimdal\nmkey_file = {at.folder}/mkey\nacl_file = {at.folder}/acl\n}}\n")
    script = (f"{kadmin} -l init --realm-max-ticket-life=unlimited --realm-max-renewable-life=unlimited LAB.EXAMPLE; {kadmin} -l add --use-defaults --password=secret lab;"
              f" {kadmin} -l add --use-defaults --random-key host/server.lab.example; exec {kdc} --ports={at.port} --addresses={at.host}")
    return [["sh", "-c", script]]


def dante(at):
    return [["danted", "-f", at.write("danted.conf", f"internal: {at.host} port = {at.port}\nexternal: lo\nclientmethod: none\nsocksmethod: none\nuser.privileged: root\nuser.unprivileged: root\nlogoutput: stderr\n"
             "client pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }\nsocks pass { from: 0.0.0.0/0 to: 0.0.0.0/0 }\n")], ["busybox", "httpd", "-f", "-p", "127.0.0.1:8098", "-h", WWW]]


SERVERS = {
    "HTTP": {"nginx": nginx, "lighttpd": lighttpd, "python": python_http, "busybox": busybox_http, "tornado": py("tornado")},
    "TLS": {"nginx": nginx_tls, "openssl": openssl, "stunnel": stunnel, "gnutls-serv": gnutls},
    "DNS": {"dnsmasq": dnsmasq, "bind": named, "unbound": unbound, "knot": knot, "nsd": nsd},
    "SSH": {"openssh-server": sshd, "dropbear": dropbear, "asyncssh-server": py("asyncssh")},
    "MQTT": {"mosquitto": mosquitto, "amqtt": py("amqtt"), "mqttools": py("mqttools")},
    "SMTP": {"opensmtpd": opensmtpd, "aiosmtpd": aiosmtpd, "exim": exim},
    "FTP_CONTROL": {"proftpd": proftpd, "pyftpdlib": py("pyftpdlib"), "vsftpd": vsftpd},
    "PostgreSQL": {"postgres": postgres, "pgbouncer": pgbouncer},
    "LDAP": {"slapd": slapd, "ldaptor": py("ldaptor")},
    "SNMP": {"snmpd": snmpd, "snmpsim": snmpsim},
    "STUN": {"coturn": coturn, "kamailio": kamailio_stun},
    "SIP": {"kamailio": kamailio, "sipp": sipp},
    "NTP": {"chrony": chronyd, "ntpsec": ntpsec},
    "QUIC": {"aioquic": py("aioquic"), "ngtcp2-server": ngtcp2},
    "BGP": {"bird": bird, "gobgp": gobgp, "frr": frr},
    "Kerberos": {"mit": mit_kdc, "heimdal": heimdal_kdc},
    "NetBIOS": {"samba": smbd, "impacket-server": impacket_smb},
    "DTLS": {"openssl": openssl_dtls, "gnutls-serv": gnutls_dtls},
    "Redis": {"redis": redis}, "Memcached": {"memcached": memcached}, "MySQL": {"mariadb": mariadb}, "IMAP": {"dovecot": dovecot},
    "POP3": {"dovecot": dovecot_pop3}, "RSYNC": {"rsync": rsyncd}, "TFTP": {"atftpd": atftpd}, "SOCKS": {"dante": dante},
}
