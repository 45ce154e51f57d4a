"""Servers that are Python libraries: py_servers.py NAME HOST PORT FOLDER."""

import asyncio
import pathlib
import sys

from place import KEYS, PASSWORD, USER, WWW


def tornado(host, port, folder):
    import tornado.ioloop
    import tornado.web

    files = tornado.web.StaticFileHandler, {"path": str(WWW)}
    tornado.web.Application([("/(.*)", *files)]).listen(port, host)
    tornado.ioloop.IOLoop.current().start()


def asyncssh(host, port, folder):
    import asyncssh

    class Server(asyncssh.SSHServer):
        def validate_password(self, username, password):
            return (username, password) == (USER, PASSWORD)

        def password_auth_supported(self):
            return True

        def begin_auth(self, username):
            return True

    async def answer(process):
        name = (process.command or "").split("/")[-1]
        path = WWW / name
        process.stdout.write(path.read_text() if path.is_file() else "hello\n")
        process.exit(0)

    async def serve():
        await asyncssh.create_server(Server, host, port, server_host_keys=[str(KEYS / "host_rsa"), str(KEYS / "host_ed25519")], process_factory=answer,
                                     authorized_client_keys=str(KEYS / "user.pub"))
        await asyncio.Event().wait()

    asyncio.run(serve())


def amqtt(host, port, folder):
    from amqtt.broker import Broker

    async def serve():
        plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        await Broker({"listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}}, "plugins": plugins}).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


def mqttools(host, port, folder):
    import mqttools

    asyncio.run(mqttools.Broker((host, port)).serve_forever())


def pyftpdlib(host, port, folder):
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler
    from pyftpdlib.servers import FTPServer

    FTPHandler.authorizer = DummyAuthorizer()
    FTPHandler.authorizer.add_anonymous(str(WWW))
    FTPServer((host, port), FTPHandler).serve_forever()


def ldaptor(host, port, folder):
    from ldaptor import inmemory
    from ldaptor.interfaces import IConnectedLDAPEntry
    from ldaptor.protocols.ldap.ldapserver import LDAPServer
    from twisted.internet import protocol, reactor
    from twisted.python import components

    class Factory(protocol.ServerFactory):
        protocol = LDAPServer

        def __init__(self, root):
            self.root = root

        def buildProtocol(self, address):
            made = LDAPServer()
            made.debug, made.factory = False, self
            return made

    components.registerAdapter(lambda factory: factory.root, Factory, IConnectedLDAPEntry)
    root = inmemory.ReadOnlyInMemoryLDAPEntry("dc=example", {"dc": ["example"], "objectClass": ["dcObject"]})
    lab = root.addChild("dc=lab", {"dc": ["lab"], "objectClass": ["dcObject", "organization"], "o": ["Lab"]})
    for i in range(100):
        lab.addChild(f"uid=u{i}", {"uid": [f"u{i}"], "cn": [f"User {i}"], "sn": [str(i)], "mail": [f"u{i}@lab.example"], "objectClass": ["inetOrgPerson"]})
    reactor.listenTCP(port, Factory(root), interface=host)
    reactor.run()


def aioquic(host, port, folder):
    from aioquic.asyncio import serve
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3_ALPN, H3Connection
    from aioquic.h3.events import HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.events import ProtocolNegotiated

    class Answering(QuicConnectionProtocol):
        http = None

        def quic_event_received(self, event):
            if isinstance(event, ProtocolNegotiated):
                self.http = H3Connection(self._quic)
            for found in self.http.handle_event(event) if self.http else ():
                if isinstance(found, HeadersReceived):
                    name = dict(found.headers).get(b":path", b"/").decode().strip("/")
                    body = (WWW / name).read_bytes() if name and (WWW / name).is_file() else b"none"
                    self.http.send_headers(found.stream_id, [(b":status", b"200"), (b"server", b"lab")])
                    self.http.send_data(found.stream_id, body, True)
                    self.transmit()

    async def run():
        configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
        configuration.load_cert_chain(str(KEYS / "chain.pem"), str(KEYS / "leaf.key"))
        await serve(host, port, configuration=configuration, create_protocol=Answering)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    name, host, port, folder = sys.argv[1:5]
    globals()[name](host, int(port), pathlib.Path(folder))
