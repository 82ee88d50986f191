"""Access control: who calls, and what it may do.

A caller shows a bearer token, a client certificate, or, if it is another node, the key of that node. The database keeps
the hashes of tokens and node keys alone. Every node holds all of them in memory and reads what has changed once a
second, so a call costs a hash and a look-up, and a token that is revoked anywhere is of no use after a second or two. A
database that is away changes nothing: nobody can revoke a token then.

Access is open, which means that every caller may do everything, only as long as a node listens on the loopback
interface alone, without TLS, and the database has never been given a token. Otherwise health is all that is answered
without a credential. A method that `rules` does not name is closed to everybody.
"""
