"""Clients that are Python libraries: py_clients.py NAME HOST PORT SIZE FOLDER."""

import asyncio
import pathlib
import sys

from place import FILES, KEYS, NAME, PASSWORD, SIZES, USER, WWW

SQL = {1: "SELECT 1", 2: "SELECT * FROM t WHERE i < 100", 3: "SELECT * FROM t"}
COMMANDS = {1: "echo hello", 2: f"cat {WWW}/medium.html", 3: f"cat {WWW}/large.bin"}


def urllib(host, port, size, folder):
    import urllib.request

    urllib.request.urlopen(f"http://{host}:{port}/{FILES[size]}").read()


def httpx(host, port, size, folder):
    import httpx

    with httpx.Client() as client:
        for _ in range(size):
            client.get(f"http://{host}:{port}/{FILES[size]}")


def ssl(host, port, size, folder):
    import http.client
    import ssl

    context = ssl._create_unverified_context()
    if size == 2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=5)
    connection.request("GET", f"/{FILES[size]}")
    connection.getresponse().read()


def dnspython(host, port, size, folder):
    import dns.message
    import dns.query

    name, kind = {1: (f"host22.{NAME}", "A"), 2: (f"mail.{NAME}", "AAAA"), 3: (f"{NAME}", "MX")}[size]
    question = dns.message.make_query(name, kind, use_edns=size == 2)
    (dns.query.tcp if size == 3 else dns.query.udp)(question, host, 5, port)


def paramiko(host, port, size, folder):
    import paramiko

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    how = {"password": PASSWORD} if size == 2 else {"key_filename": str(KEYS / "user")}
    client.connect(host, port, USER, look_for_keys=False, allow_agent=False, **how)
    client.exec_command(COMMANDS[size])[1].read()
    client.close()


def asyncssh(host, port, size, folder):
    import asyncssh

    async def run():
        how = {"password": PASSWORD, "client_keys": None} if size == 2 else {"client_keys": [str(KEYS / "user")]}
        async with asyncssh.connect(host, port, username=USER, known_hosts=None, **how) as connection:
            await connection.run(COMMANDS[size])

    asyncio.run(run())


def paho(host, port, size, folder):
    import paho.mqtt.client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"sensor-{port}", protocol=mqtt.MQTTv5 if size == 3 else mqtt.MQTTv311)
    client.connect(host, port)
    client.loop_start()
    client.subscribe("plant/#", size - 1)
    for i in range(3 * size):
        client.publish(f"plant/line{i}", "v" * (10 ** size), size - 1).wait_for_publish(3)
    client.loop_stop()
    client.disconnect()


def gmqtt(host, port, size, folder):
    from gmqtt import Client
    from gmqtt.mqtt.constants import MQTTv50, MQTTv311

    async def run():
        client = Client(f"watch-{port}")
        await client.connect(host, port, version=MQTTv50 if size == 3 else MQTTv311)
        client.subscribe("home/#", qos=1)
        for i in range(2 * size):
            client.publish(f"home/{i}", "w" * (20 * size), qos=1)
            await asyncio.sleep(0.1)
        await client.disconnect()

    asyncio.run(run())


def message(size):
    text = (WWW / FILES[size]).read_text()[:60_000]
    return f"From: a@{NAME}\r\nTo: b@{NAME}\r\nSubject: size {size}\r\n\r\n" + "\r\n".join(text[i : i + 70] for i in range(0, len(text), 70))


def smtplib(host, port, size, folder):
    import smtplib

    with smtplib.SMTP(host, port, f"pc.{NAME}") as client:
        client.sendmail(f"a@{NAME}", [f"b@{NAME}"] * size, message(size))


def aiosmtplib(host, port, size, folder):
    import aiosmtplib

    asyncio.run(aiosmtplib.send(message(size), sender=f"a@{NAME}", recipients=[f"b@{NAME}"], hostname=host, port=port, start_tls=False))


def ftplib(host, port, size, folder):
    import ftplib

    with ftplib.FTP() as client:
        client.connect(host, port, 5)
        client.login()
        if size > 1:
            client.retrbinary(f"RETR {FILES[size]}", lambda block: None)
        client.nlst()


def aioftp(host, port, size, folder):
    import aioftp

    async def run():
        async with aioftp.Client.context(host, port) as client:
            await client.list("/")
            async with client.download_stream(FILES[size]) as stream:
                async for _ in stream.iter_by_block():
                    pass

    asyncio.run(run())


def pg8000(host, port, size, folder):
    import pg8000.dbapi

    user = {"user": "scram", "password": "secret"} if size == 2 else {"user": "lab"}
    cursor = pg8000.dbapi.connect(host=host, port=port, database="postgres", **user).cursor()
    cursor.execute(SQL[size])
    cursor.fetchall()


def psycopg2(host, port, size, folder):
    import psycopg2

    user = {"user": "scram", "password": "secret"} if size == 2 else {"user": "lab"}
    cursor = psycopg2.connect(host=host, port=port, dbname="postgres", sslmode="disable", **user).cursor()
    for _ in range(size):
        cursor.execute(SQL[size])


def asyncpg(host, port, size, folder):
    import asyncpg

    async def run():
        user = {"user": "scram", "password": "secret"} if size == 2 else {"user": "lab"}
        connection = await asyncpg.connect(host=host, port=port, database="postgres", ssl=size == 3 and "prefer", **user)
        await connection.fetch(SQL[size])
        await connection.close()

    asyncio.run(run())


def ldap3(host, port, size, folder):
    import ldap3

    server = ldap3.Server(host, port, get_info=ldap3.ALL if size == 2 else ldap3.NONE)
    user = {"user": "cn=admin,dc=lab,dc=example", "password": "secret"} if size == 3 else {}
    connection = ldap3.Connection(server, auto_bind=size != 3, **user)
    connection.bind()
    connection.search("dc=lab,dc=example", "(uid=u1*)" if size > 1 else "(uid=u12)", attributes=["cn", "mail"])
    connection.unbind()


def impacket_ldap(host, port, size, folder):
    import impacket.ldap.ldap as ldap

    connection = ldap.LDAPConnection(f"ldap://{host}:{port}", "dc=lab,dc=example", host, signing=False)
    connection.login(authenticationChoice="simple", user="cn=admin,dc=lab,dc=example", password="secret")
    connection.search(searchFilter={1: "(uid=u17)", 2: "(uid=u1*)", 3: "(objectClass=*)"}[size], attributes=["cn"])


def pysnmp(host, port, size, folder):
    from pysnmp.hlapi.v3arch.asyncio import CommunityData, ContextData, ObjectIdentity, ObjectType, SnmpEngine, UdpTransportTarget, bulk_cmd, get_cmd

    async def run():
        given = SnmpEngine(), CommunityData("public", mpModel=0 if size == 1 else 1), await UdpTransportTarget.create((host, port), 2, 0), ContextData()
        if size == 3:
            await bulk_cmd(*given, 0, 20, ObjectType(ObjectIdentity("1.3.6.1.2.1.2")))
        else:
            await get_cmd(*given, *[ObjectType(ObjectIdentity(f"1.3.6.1.2.1.1.{i}.0")) for i in range(1, size + 3)])

    asyncio.run(run())


def puresnmp(host, port, size, folder):
    from puresnmp import V2C, Client, PyWrapper

    async def run():
        client = PyWrapper(Client(host, V2C("public"), port=port))
        if size == 1:
            await client.get("1.3.6.1.2.1.1.1.0")
        elif size == 2:
            await client.multiget([f"1.3.6.1.2.1.1.{i}.0" for i in (1, 3, 5)])
        else:
            async for _ in client.walk("1.3.6.1.2.1.1"):
                pass

    asyncio.run(run())


def aioice(host, port, size, folder):
    import aioice.ice
    import aioice.stun

    async def run():
        turn = {"turn_server": (host, port), "turn_username": USER, "turn_password": "secret"} if size == 3 else {}
        connection = aioice.Connection(ice_controlling=True, stun_server=(host, port), use_ipv6=False, components=size, **turn)
        await connection.gather_candidates()
        await connection.close()

    asyncio.run(run())


def pystun3(host, port, size, folder):
    import stun

    for _ in range(size):
        stun.get_ip_info("0.0.0.0", 54000 + port % 1000 + size, host, port)


def ntplib(host, port, size, folder):
    import ntplib

    for _ in range(size):
        ntplib.NTPClient().request(host, version=5 - size, port=port, timeout=2)


def aioquic(host, port, size, folder):
    import ssl

    from aioquic.asyncio.client import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import DataReceived
    from aioquic.quic.configuration import QuicConfiguration

    class Asking(QuicConnectionProtocol):
        http, done = None, None

        def quic_event_received(self, event):
            for found in self.http.handle_event(event) if self.http else ():
                if isinstance(found, DataReceived) and found.stream_ended and not self.done.done():
                    self.done.set_result(True)

    async def run():
        configuration = QuicConfiguration(alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_NONE, server_name=NAME)
        async with connect(host, port, configuration=configuration, create_protocol=Asking) as client:
            client.http, client.done = H3Connection(client._quic), asyncio.get_running_loop().create_future()
            stream = client._quic.get_next_available_stream_id()
            headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", NAME.encode()), (b":path", f"/{FILES[size]}".encode())]
            client.http.send_headers(stream, headers, True)
            client.transmit()
            await asyncio.wait_for(client.done, 5)

    asyncio.run(run())


def impacket_krb(host, port, size, folder):
    import impacket.krb5.kerberosv5 as kerberos
    from impacket.krb5 import constants
    from impacket.krb5.types import Principal

    # The library knows the usual port only; it opens its socket by this name.
    real = kerberos.socket.getaddrinfo
    kerberos.socket.getaddrinfo = lambda name, _port, *more: real(name, port, *more)
    name = Principal("lab", type=constants.PrincipalNameType.NT_PRINCIPAL.value)
    ticket, cipher, _, key = kerberos.getKerberosTGT(name, "secret", "LAB.EXAMPLE", b"", b"", kdcHost=host)
    if size > 1:
        service = Principal("host/server.lab.example", type=constants.PrincipalNameType.NT_SRV_INST.value)
        kerberos.getKerberosTGS(service, "LAB.EXAMPLE", host, ticket, cipher, key)


def minikerberos(host, port, size, folder):
    from minikerberos.common.factory import KerberosClientFactory
    from minikerberos.common.spn import KerberosSPN

    async def run():
        client = KerberosClientFactory.from_url(f"kerberos+password://LAB.EXAMPLE\\lab:secret@{host}:{port}/").get_client()
        await client.get_TGT()
        if size > 1:
            await client.get_TGS(KerberosSPN.from_spn("host/server.lab.example@LAB.EXAMPLE"))

    asyncio.run(run())


def impacket_smb(host, port, size, folder):
    from impacket.smbconnection import SMBConnection

    connection = SMBConnection("*SMBSERVER", host, sess_port=port)
    connection.login("", "")
    connection.listShares() if size == 1 else connection.getFile("www", FILES[size], lambda block: None)
    connection.close()


def smbprotocol(host, port, size, folder):
    import smbclient

    smbclient.ClientConfig(username="guest", password="", require_secure_negotiate=False)
    smbclient.register_session(host, username="guest", password="", port=port, require_signing=False)
    if size == 1:
        smbclient.listdir(rf"\\{host}\www", port=port)
    else:
        with smbclient.open_file(rf"\\{host}\www\{FILES[size]}", mode="rb", port=port) as file:
            file.read()


def redis(host, port, size, folder):
    import redis

    client = redis.Redis(host, port)
    for i in range(size ** 3):
        client.set(f"k{i}", "v" * 10 ** size)
    client.get("k0")


def pymemcache(host, port, size, folder):
    from pymemcache.client.base import Client

    client = Client((host, port))
    client.set("k", "v" * SIZES[size])
    client.get("k")


def pymysql(host, port, size, folder):
    import pymysql

    cursor = pymysql.connect(host=host, port=port, user="lab", password="secret", database="d").cursor()
    cursor.execute(SQL[size])
    cursor.fetchall()


def imaplib(host, port, size, folder):
    import imaplib

    client = imaplib.IMAP4(host, port)
    client.login(USER, "secret")
    client.select()
    client.fetch(str(size), "(RFC822)")
    client.logout()


def poplib(host, port, size, folder):
    import poplib

    client = poplib.POP3(host, port)
    client.user(USER)
    client.pass_("secret")
    client.retr(size)
    client.quit()


if __name__ == "__main__":
    name, host, port, size, folder = sys.argv[1:6]
    globals()[name](host, int(port), int(size), pathlib.Path(folder))
