package redlatch.interop;

import java.time.Instant;

import org.redisson.api.LockOptions;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RExpirable;
import org.redisson.api.RLock;
import org.redisson.api.RObject;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Finds the object that a verb is about. A verb is {@code [client@]kind.operation}, or one word for the client. */
final class Verbs {
    private final Clients clients = new Clients();

    Object run(String verb, Tokens args) throws Exception {
        int at = verb.indexOf('@');
        String client = at < 0 ? Clients.DEFAULT : verb.substring(0, at);
        String bare = verb.substring(at + 1);
        int dot = bare.indexOf('.');
        return dot < 0 ? clientVerb(client, bare, args)
                : objectVerb(client, bare.substring(0, dot), bare.substring(dot + 1), args);
    }

    private Object clientVerb(String client, String verb, Tokens args) {
        if (verb.equals("connect")) {
            return clients.connect(args);
        }
        args.end();
        return switch (verb) {
            case "ping" -> "pong";
            // The manifest of the jar that was really loaded, not what a build file meant to load.
            case "version" -> RedissonClient.class.getPackage().getImplementationVersion();
            case "threadId" -> Thread.currentThread().getId();
            case "id" -> clients.get(client).getId();
            case "forget" -> {
                clients.forgetObjects();
                yield null;
            }
            case "shutdown" -> {
                clients.shutdown(client);
                yield null;
            }
            default -> throw new IllegalArgumentException("unknown verb " + verb);
        };
    }

    private Object objectVerb(String client, String kind, String operation, Tokens args) throws Exception {
        String name = args.text();
        switch (kind) {
            case "sem" -> {
                RSemaphore semaphore = clients.object(RSemaphore.class, client, kind, name, c -> c.getSemaphore(name));
                return SemaphoreVerbs.run(semaphore, operation, args);
            }
            case "permit" -> {
                RPermitExpirableSemaphore permits = clients.object(RPermitExpirableSemaphore.class, client, kind, name,
                        c -> c.getPermitExpirableSemaphore(name));
                return PermitVerbs.run(permits, operation, args);
            }
            case "latch" -> {
                RCountDownLatch latch =
                        clients.object(RCountDownLatch.class, client, kind, name, c -> c.getCountDownLatch(name));
                return LatchVerbs.run(latch, operation, args);
            }
            case "rate" -> {
                RRateLimiter limiter =
                        clients.object(RRateLimiter.class, client, kind, name, c -> c.getRateLimiter(name));
                return RateVerbs.run(limiter, operation, args);
            }
            default -> {
                return LockVerbs.run(lock(client, kind, name), operation, args);
            }
        }
    }

    private RLock lock(String client, String kind, String name) {
        if (kind.equals("multi") || kind.equals("red")) {
            RLock[] members = members(client, name);
            return clients.object(RLock.class, client, kind, name,
                    c -> kind.equals("red") ? redLock(c, members) : c.getMultiLock(members));
        }
        return clients.object(RLock.class, client, kind, name, c -> switch (kind) {
            case "lock" -> c.getLock(name);
            case "fair" -> c.getFairLock(name);
            case "spin" -> c.getSpinLock(name);
            case "spinconstant" -> c.getSpinLock(name, new LockOptions.ConstantBackOff());
            case "read" -> c.getReadWriteLock(name).readLock();
            case "write" -> c.getReadWriteLock(name).writeLock();
            default -> Release.lock(c, kind, name);
        });
    }

    @SuppressWarnings("deprecation")
    private static RLock redLock(RedissonClient client, RLock[] members) {
        return client.getRedLock(members);
    }

    /** The members of a multi-lock: {@code [client@]kind=name} joined by commas, each name percent-encoded. */
    private RLock[] members(String client, String list) {
        String[] items = list.split(",");
        RLock[] members = new RLock[items.length];
        for (int i = 0; i < items.length; i++) {
            int equals = items[i].indexOf('=');
            if (equals < 0) {
                throw new IllegalArgumentException("expected kind=name, got " + items[i]);
            }
            String owner = items[i].substring(0, equals);
            int at = owner.indexOf('@');
            members[i] = lock(at < 0 ? client : owner.substring(0, at), owner.substring(at + 1),
                    Tokens.decode(items[i].substring(equals + 1)));
        }
        return members;
    }

    /** What every Redisson object offers, for the operations that no kind has for itself. */
    static Object objectOperation(Object object, String operation, Tokens args) throws Exception {
        if (object instanceof RObject known) {
            switch (operation) {
                case "delete" -> {
                    args.end();
                    return known.delete();
                }
                case "exists" -> {
                    args.end();
                    return known.isExists();
                }
                default -> {
                }
            }
        }
        if (object instanceof RExpirable known) {
            switch (operation) {
                case "expire" -> {
                    long leaseMs = args.number();
                    args.end();
                    return known.expire(Instant.now().plusMillis(leaseMs));
                }
                case "clearExpire" -> {
                    args.end();
                    return known.clearExpire();
                }
                case "ttl" -> {
                    args.end();
                    return known.remainTimeToLive();
                }
                default -> {
                }
            }
        }
        return Release.operation(object, operation, args);
    }
}
