package redlatch.interop;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;

/** One Java thread, hence one lock owner, that executes the commands addressed to it in order. */
final class Worker extends Thread {
    private record Command(String seq, String verb, String[] args) {
    }

    private final Driver driver;
    private final Verbs verbs;
    private final BlockingQueue<Command> queue = new LinkedBlockingQueue<>();
    private final Object interruptLock = new Object();
    private boolean busy;
    private boolean lastCommandLeftInterrupted;

    Worker(String id, Driver driver, Verbs verbs) {
        super("worker-" + id);
        this.driver = driver;
        this.verbs = verbs;
        setDaemon(true);
    }

    void submit(String seq, String verb, String[] args) {
        queue.add(new Command(seq, verb, args));
    }

    /** Interrupts the thread if it executes a command; an idle thread is left alone. */
    boolean interruptCommand() {
        synchronized (interruptLock) {
            if (busy) {
                interrupt();
            }
            return busy;
        }
    }

    @Override
    public void run() {
        while (true) {
            Command command;
            try {
                command = queue.take();
            } catch (InterruptedException e) {
                // Interrupts are only sent to a busy thread, so this one came from Redisson and concerns nobody.
                continue;
            }
            setBusy(true);
            long startNanos = System.nanoTime();
            String outcome;
            String value;
            try {
                value = command.verb().equals("wasInterrupted")
                        ? String.valueOf(lastCommandLeftInterrupted)
                        : Tokens.encodeValue(verbs.run(command.verb(), new Tokens(command.args())));
                outcome = "ok";
            } catch (Throwable failure) {
                Throwable cause = failure;
                while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                        && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                outcome = "err";
                value = cause.getClass().getSimpleName() + ' ' + Tokens.encode(String.valueOf(cause.getMessage()));
            }
            // Not busy before the reply goes out: an interrupt sent after the reply must not hit the next command.
            setBusy(false);
            driver.reply(command.seq(), startNanos, outcome, value);
        }
    }

    private void setBusy(boolean now) {
        synchronized (interruptLock) {
            busy = now;
            if (!now) {
                // A thread that Redisson leaves interrupted would fail its next command, so the flag is kept apart.
                lastCommandLeftInterrupted = Thread.interrupted();
            }
        }
    }
}
