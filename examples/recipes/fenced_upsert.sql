INSERT INTO account (id, owner, fence)
VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE
SET owner = excluded.owner, fence = excluded.fence
WHERE account.fence <= excluded.fence
