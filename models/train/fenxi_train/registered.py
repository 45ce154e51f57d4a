"""Ports that IANA registers for protocols with the names that nDPI gives them."""

_LISTED = {
    "HTTP": "tcp 80 8008 8080", "TLS": "tcp 443 853", "DNS": "tcp 53 udp 53", "NetBIOS": "tcp 139 445 udp 137 138",
    "DCERPC": "tcp 135", "QUIC": "udp 443", "SMTP": "tcp 25 587", "MQTT": "tcp 1883", "STUN": "tcp 3478 udp 3478",
    "SSDP": "udp 1900", "FTP_CONTROL": "tcp 21", "FTP_DATA": "tcp 20", "SSH": "tcp 22", "SIP": "tcp 5060 udp 5060",
    "LLMNR": "udp 5355", "DHCP": "udp 67 68", "DHCPV6": "udp 546 547", "MDNS": "udp 5353", "LISP": "udp 4341 4342",
    "BGP": "tcp 179", "IPSec": "udp 500 4500", "Kerberos": "tcp 88 udp 88", "SNMP": "udp 161 162", "VXLAN": "udp 4789",
    "NTP": "udp 123", "PostgreSQL": "tcp 5432", "LDAP": "tcp 389 udp 389", "MySQL": "tcp 3306", "IMAP": "tcp 143",
    "POP3": "tcp 110", "RDP": "tcp 3389", "Telnet": "tcp 23", "RTSP": "tcp 554", "BitTorrent": "tcp 6881 udp 6881",
}


def _read():
    found = {}
    for name, text in _LISTED.items():
        protocol = None
        for word in text.split():
            if word in ("tcp", "udp"):
                protocol = 6 if word == "tcp" else 17
            else:
                found[protocol, int(word)] = name
    return found


PORTS = _read()  # (protocol number, port) -> name
