#!/bin/sh
# Installs the programs of the laboratory on Debian 12, as root, and their Python packages in target/lab-venv.
# Packages that Debian does not let stand together are unpacked in target/lab-root, a folder each.
set -eu

here=$(cd "$(dirname "$0")/../../.." && pwd)
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends \
    iproute2 ethtool nftables tcpdump openssh-server openssh-client dropbear-bin putty-tools \
    nginx-light lighttpd busybox curl wget apache2-utils aria2 stunnel4 gnutls-bin haproxy openssl \
    dnsmasq-base bind9 bind9-dnsutils unbound knot knot-dnsutils ldnsutils nsd \
    mosquitto mosquitto-clients opensmtpd swaks msmtp proftpd-core lftp tnftp \
    postgresql pgbouncer mariadb-server redis-server memcached libmemcached-tools slapd ldap-utils \
    chrony snmpd snmp coturn bird2 frr gobgpd krb5-kdc krb5-admin-server krb5-user \
    rsync dante-server sip-tester kamailio dovecot-imapd dovecot-pop3d samba smbclient atftpd atftp \
    ngtcp2-client ngtcp2-server sofia-sip-bin ntpsec-ntpdig \
    libkadm5clnt7-heimdal libkadm5srv8-heimdal libkdc2-heimdal libkafs0-heimdal libsl0-heimdal
mkdir -p "$here/target/lab-root"
cd "$here/target/lab-root"
apt-get download -q vsftpd exim4-daemon-light ntpsec heimdal-kdc heimdal-clients
for package in *.deb; do dpkg -x "$package" "${package%%_*}"; done
mkdir -p /var/lib/heimdal-kdc
# The user that exim4 was built for.
id Debian-exim >/dev/null 2>&1 || useradd --system Debian-exim
python3 -m venv "$here/target/lab-venv"
"$here/target/lab-venv/bin/pip" install -q asyncssh paramiko aiosmtpd aiosmtplib pyftpdlib aioftp amqtt paho-mqtt gmqtt \
    pg8000 psycopg2-binary asyncpg aioquic dnslib dnspython ldaptor ldap3 pystun3 aioice ntplib exabgp minikerberos impacket \
    smbprotocol aiohttp httpx uvicorn cheroot twisted tornado waitress pysnmp tlslite-ng pymysql pymemcache redis snmpsim pysmi puresnmp mqttools
