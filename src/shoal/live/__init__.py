"""`shoal lab`: a page on this machine that trains, measures and checks while settings move.

```
browser  <──server-sent events──  server (starlette)  <──lines of JSON──  worker (owns JAX)
         ──────small POSTs─────>                      ────────────────>
```

The server knows no mathematics and the worker no network; each can end without the other hanging.
"""
