package io.sealstone.function;

import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;

/** Loads and runs a function; the engine and the local runner call it. */
final class FunctionRunner implements Thread.UncaughtExceptionHandler {
    /** Lines of an exception that the log of the job receives. */
    static final int TRACE_LINES_MAX = 24;

    private static final long NO_MEMORY = -12;
    private static final String PACKAGE = "io.sealstone.function.";

    private final CallHost host;
    private final OsdFunction function;
    private final LogOutput output;
    private final LogOutput errors;
    private volatile boolean hasSecrets;

    private FunctionRunner(CallHost host, OsdFunction function, LogOutput output, LogOutput errors) {
        this.host = host;
        this.function = function;
        this.output = output;
        this.errors = errors;
    }

    /** Loads the function of the engine. An exception was reported; only its type counts. */
    static FunctionRunner load(String name) throws Throwable {
        return load(new EngineHost(), new FunctionLoader(), name);
    }

    static FunctionRunner load(CallHost host, ClassLoader loader, String name) throws Throwable {
        LogOutput output = new LogOutput(host, Osd.INFO);
        LogOutput errors = new LogOutput(host, Osd.WARNING);
        System.setOut(new PrintStream(output, false, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(errors, false, StandardCharsets.UTF_8));
        Thread.currentThread().setContextClassLoader(loader);
        try {
            Class<?> type = Class.forName(name, true, loader);
            if (!OsdFunction.class.isAssignableFrom(type)) {
                throw new ClassCastException("class " + name + " does not implement " + PACKAGE + "OsdFunction");
            }
            OsdFunction function = (OsdFunction) type.getDeclaredConstructor().newInstance();
            FunctionRunner runner = new FunctionRunner(host, function, output, errors);
            Thread.setDefaultUncaughtExceptionHandler(runner);
            return runner;
        } catch (NoSuchMethodException error) {
            Exception missing = new NoSuchMethodException("class " + name + " has no constructor without parameters");
            report(host, missing, false);
            throw missing;
        } catch (InvocationTargetException error) {
            report(host, error.getCause(), false);
            throw error.getCause();
        } catch (Throwable error) {
            report(host, error, false);
            throw error;
        } finally {
            output.writeRest();
            errors.writeRest();
        }
    }

    /**
     * Runs a call. Returns its status; an exception without an error number is reported and thrown.
     *
     * @param fields five numbers for each object
     */
    long run(String method, byte[] arguments, long[] fields, int timeoutMs, long resultBytesMax, boolean isSecret)
            throws Throwable {
        OsdObject[] objects = new OsdObject[fields.length / 5];
        for (int handle = 0; handle < objects.length; handle++) {
            int at = handle * 5;
            objects[handle] = new OsdObject(
                    handle, fields[at], fields[at + 1], fields[at + 2], (int) fields[at + 3], (int) fields[at + 4]);
        }
        hasSecrets = isSecret;
        try {
            return function.run(new Osd(host), new Call(method, arguments, objects, timeoutMs, resultBytesMax));
        } catch (Throwable error) {
            report(host, error, isSecret);
            if (error instanceof OutOfMemoryError) {
                return NO_MEMORY;
            }
            if (error instanceof OsdException refused && refused.errno() > 0) {
                return -refused.errno();
            }
            throw error;
        } finally {
            output.writeRest();
            errors.writeRest();
        }
    }

    /** Reports the exception of another thread, which ends that thread only. */
    @Override
    public void uncaughtException(Thread thread, Throwable error) {
        report(host, error, hasSecrets);
    }

    /** Writes an exception to the log of the job. With secret arguments it has no message. */
    private static void report(CallHost host, Throwable error, boolean isSecret) {
        host.log(Osd.ERROR, bytes(line("", error, isSecret)));
        if (error instanceof OutOfMemoryError) {
            return;
        }
        StackTraceElement[] frames = error.getStackTrace();
        int lines = 1;
        for (StackTraceElement frame : frames) {
            if (frame.getClassName().startsWith(PACKAGE)) {
                continue;
            }
            if (lines == TRACE_LINES_MAX) {
                break;
            }
            host.log(Osd.ERROR, bytes("  at " + frame));
            lines++;
        }
        Throwable cause = error.getCause();
        if (cause != null && lines < TRACE_LINES_MAX) {
            host.log(Osd.ERROR, bytes(line("caused by ", cause, isSecret)));
        }
    }

    private static String line(String before, Throwable error, boolean isSecret) {
        String name = before + error.getClass().getName();
        if (isSecret) {
            return name + " (message omitted: the arguments are secret)";
        }
        String message = error.getMessage();
        return message == null ? name : name + ": " + message.replace('\n', ' ');
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
