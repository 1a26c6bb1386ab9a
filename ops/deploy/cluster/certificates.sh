#!/bin/sh
# Make a certificate authority and the certificates of a cluster, with openssl:
#
#     certificates.sh FOLDER [HOST ...]
#
# ca.pem                        vouches for all others; every server and every client has it
# ca-key.pem                    makes further ones: keep it off the servers
# server-1.pem server-1-key.pem ... of three servers, under their own names, localhost, 127.0.0.1
#                               and each HOST (a name or an IP address)
# client.pem client-key.pem     of nodes and clients
#
# With other names in SERVERS, such as SERVERS="west east", those instead of the three.
# A second call with the same FOLDER keeps the authority and renews the others.
set -eu

folder=${1:?"usage: $0 FOLDER [HOST ...]"}
shift
umask 077
mkdir -p "$folder"
cd "$folder"

new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

if [ ! -e ca-key.pem ]; then
    openssl req -x509 $new_key -sha256 -days 3650 -subj "/CN=Rookery cluster" \
        -keyout ca-key.pem -out ca.pem 2>openssl.log
fi

sign() { # NAME SUBJECT_ALT_NAMES
    openssl req -new $new_key -subj "/CN=$1" -keyout "$1-key.pem" -out "$1.csr" 2>openssl.log
    {
        echo "basicConstraints=CA:FALSE"
        echo "extendedKeyUsage=serverAuth,clientAuth" # A server is its routes' client, too.
        echo "subjectAltName=$2"
    } >"$1.ext"
    openssl x509 -req -sha256 -days 825 -in "$1.csr" -CA ca.pem -CAkey ca-key.pem \
        -CAcreateserial -extfile "$1.ext" -out "$1.pem" 2>openssl.log
    rm "$1.csr" "$1.ext"
}

names=""
for host in "$@"; do
    case $host in
    *:* | *[0-9].[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$host" ;;
    *) names="$names,DNS:$host" ;;
    esac
done
for name in ${SERVERS:-server-1 server-2 server-3}; do
    sign "$name" "DNS:$name,DNS:localhost,IP:127.0.0.1$names"
done
sign client "DNS:client"
rm openssl.log
