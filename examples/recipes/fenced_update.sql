UPDATE account
SET owner = $1, fence = $2
WHERE id = $3 AND fence <= $2
