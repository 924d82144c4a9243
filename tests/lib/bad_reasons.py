"""The numbers of the list of bad inputs that nothing can meet yet, with the reasons, for spine/9 and clients/6: each reason names the API keys with which the cases come, and no longer holds once they are
advertised. Whoever brings the part brings the case."""

import proc
import proof
import wire

SASL, SCRAM = {17: "SaslHandshake", 36: "SaslAuthenticate"}, {50: "DescribeUserScramCredentials", 51: "AlterUserScramCredentials"}
ACLS = {29: "DescribeAcls", 30: "CreateAcls", 31: "DeleteAcls"}
NOT_HERE = {
    6: ("TLS isn't spoken", {}),
    10: ("SASL isn't spoken: no handshake comes first, and none comes twice", SASL),
    13: ("no passwords", SASL | SCRAM),
    14: ("no SCRAM", SASL | SCRAM),
    15: ("neither OAUTHBEARER nor PLAIN", SASL),
    24: ("no ACLs", ACLS),
    41: ("no ACLs: every client may do everything", ACLS),
}
# The same for a part of a number that has other cases.
PARTS_NOT_HERE = [
    (21, "no members of the newer protocols", {68: "ConsumerGroupHeartbeat", 76: "ShareGroupHeartbeat", 88: "StreamsGroupHeartbeat"}),
    (22, "no sessions of share groups", {78: "ShareFetch"}),
    (23, "no transactional ids", {24: "AddPartitionsToTxn", 25: "AddOffsetsToTxn", 26: "EndTxn", 28: "TxnOffsetCommit"}),
    (46, "nobody is refused what he may not know: there are no ACLs", ACLS),
]


def hold(p, broker, numbers, last):
    """Every number up to the last has a case or a reason, and no reason has been overtaken by what the broker serves."""
    connection = wire.Connection(broker.port)
    advertised = connection.api_versions()
    connection.close()
    for number in range(1, last + 1):
        where = number in numbers, number in NOT_HERE
        p.check(f"number {number} has a case, or a reason why it has none", where in ((True, False), (False, True)))
    for number, reason, keys in [(n, *of) for n, of in NOT_HERE.items()] + PARTS_NOT_HERE:
        served = [name for key, name in keys.items() if key in advertised]
        p.check(f"number {number} has no case because of this: {reason}", not served, f"but {served} are advertised")
    if p.against == "tailrace":
        settings = proc.run([proof.binary(), "config"]).stdout.decode().lower()
        p.check(f"number 6 has no case because of this: {NOT_HERE[6][0]}", "tls" not in settings and "ssl" not in settings)
